//! Names of gRPC codes, as in [`Failure`](crate::v1::Failure).

use tonic::Code;

/// Names of all codes, indexed by their numbers.
pub const CODE_NAMES: [&str; 17] = [
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

/// Returns the name of a code, such as `RESOURCE_EXHAUSTED`.
pub fn code_name(code: Code) -> &'static str {
    CODE_NAMES[code as usize]
}

/// Returns the code with this name; [`Code::Unknown`] for an invalid name.
pub fn code_of(name: &str) -> Code {
    let number = CODE_NAMES.iter().position(|known| *known == name);
    number.and_then(|number| i32::try_from(number).ok()).map_or(Code::Unknown, Code::from_i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_grpc_and_map_back_to_their_code() {
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
