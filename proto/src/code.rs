//! gRPC's codes by their names, as a [`Failure`](crate::v1::Failure) carries them.

use tonic::Code;

const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a code, such as `RESOURCE_EXHAUSTED`.
pub fn code_name(code: Code) -> &'static str {
    NAMES[code as usize]
}

/// The code of that name; `Unknown` for what is none.
pub fn code_of(name: &str) -> Code {
    let number = NAMES.iter().position(|known| *known == name);
    number.and_then(|number| i32::try_from(number).ok()).map_or(Code::Unknown, Code::from_i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_grpcs_own_name_and_is_found_by_it() {
        for number in 0..17 {
            let code = Code::from_i32(number);
            assert_eq!(code_of(code_name(code)), code);
            let spelled: String = code_name(code)
                .split('_')
                .map(|word| word[..1].to_owned() + &word[1..].to_lowercase())
                .collect();
            assert_eq!(spelled.to_lowercase(), format!("{code:?}").to_lowercase());
        }
        assert_eq!(code_of("NONE"), Code::Unknown);
    }
}
