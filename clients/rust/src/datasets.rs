//! Datasets of a server.

use arrow_flight::{FlightDescriptor, FlightInfo};
use forebay_proto::{Encoding, v1::DatasetInfo};

use crate::{Error, route::Transport};

/// Lists the datasets that the caller may read, sorted by name, also those that cannot be opened.
pub(crate) async fn list(transport: &Transport) -> Result<Vec<DatasetInfo>, Error> {
    transport.list_flights().await?.iter().map(info).collect()
}

/// Describes the dataset `name`.
pub(crate) async fn describe(transport: &Transport, name: &str) -> Result<DatasetInfo, Error> {
    info(&transport.flight_info(FlightDescriptor::new_path(vec![name.to_owned()])).await?)
}

fn info(flight: &FlightInfo) -> Result<DatasetInfo, Error> {
    let about = Encoding::Json.decode("DatasetInfo", &flight.app_metadata);
    about.map_err(|error| Error::protocol(format!("malformed FlightInfo: {error}")))
}
