//! Texts of numeric literals, which expressions carry as metadata.

/// Key of the text in the metadata of a literal.
pub(crate) const TEXT: &str = "forebay.text";

/// Replaces literals that carry a text by this text in a message of DataFusion, which shows them with their metadata.
pub(crate) fn without_metadata(mut message: String) -> String {
    const START: &str = " FieldMetadata { inner: {\"";
    const END: &str = "\"} }";
    while let Some(start) = message.find(START) {
        let Some(length) = message[start..].find(END) else { break };
        let entry = &message[start + START.len()..start + length];
        let shown = match entry.strip_prefix(TEXT).and_then(|rest| rest.strip_prefix("\": \"")) {
            Some(text) => {
                let literal = message[..start].rfind("Float64(").unwrap_or(start);
                format!("{}{text}", &message[..literal])
            }
            None => message[..start].to_owned(),
        };
        message = shown + &message[start + length + END.len()..];
    }
    message
}
