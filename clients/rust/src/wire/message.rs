//! One received `FlightData` message.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};

use crate::{Error, memory::Slab};

/// A received `FlightData` message.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) header: Vec<u8>,
    pub(crate) app_metadata: Vec<u8>,
    pub(crate) body: Option<Slab>,
}

impl Message {
    /// Returns the schema in the message; `None` if it is a message of another type.
    pub(crate) fn schema(&self) -> Result<Option<SchemaRef>, Error> {
        let root = arrow_ipc::root_as_message(&self.header).map_err(Error::malformed("message"))?;
        let schema: Option<Schema> = root.header_as_schema().map(arrow_ipc::convert::fb_to_schema);
        Ok(schema.map(Arc::new))
    }
}
