//! Name, zone and state of this server: its answer to `hello`.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_proto::v1::HelloResult;
use forebay_storage::{Documents, State};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{Error, Settings};

/// Maximum size of the document with the id of the state, in bytes.
const MAX_ID_BYTES: u64 = 1024;
/// Name of the document with the id of the state.
const DOCUMENT: &str = "id";

/// Name, zone and state of this server.
pub(super) struct Identity {
    name: Option<String>,
    zone: String,
    instance: u64,
    /// True once this process was reached at its name.
    is_confirmed: AtomicBool,
    documents: Documents,
    state: Mutex<Option<String>>,
}

impl Identity {
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn new(settings: &Settings, state: &State) -> Result<Self, Error> {
        Ok(Self {
            name: settings.advertise.clone(),
            zone: settings.zone.clone().unwrap_or_default(),
            instance: u64::from_le_bytes(random()?),
            is_confirmed: AtomicBool::new(false),
            documents: state.documents("cluster", "state", MAX_ID_BYTES),
            state: Mutex::default(),
        })
    }

    /// Returns the name of this server: its setting `advertise`.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the number of this process.
    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    /// Records that this process was reached at its name.
    pub(super) fn set_confirmed(&self) {
        self.is_confirmed.store(true, Ordering::Relaxed);
    }

    /// True once this process was reached at its name.
    pub(super) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Relaxed)
    }

    /// Returns the zone of this server; empty for none.
    pub(super) fn zone(&self) -> &str {
        &self.zone
    }

    /// Returns the id of the state. Creates it if this is the first server of the state.
    ///
    /// # Errors
    /// If the state can't be read or written.
    pub(super) async fn state(&self) -> Result<String, Error> {
        if let Some(known) = self.state.lock().clone() {
            return Ok(known);
        }
        let stored = self.documents.get_or_create(DOCUMENT, &hex::encode(random::<16>()?)).await;
        let stored =
            stored.map_err(|error| Error::from(error).with_hint("the id of the state is unknown"))?;
        *self.state.lock() = Some(stored.clone());
        Ok(stored)
    }

    /// Discards the stored id of the state, which is then read again. In a store without conditional writes, another server that
    /// started at the same time may have replaced it.
    pub(super) fn forget_state(&self) {
        self.state.lock().take();
    }

    /// Returns the answer of this server to `hello`.
    ///
    /// # Errors
    /// Precondition if this server has no name; the errors of [`state`](Self::state).
    pub(super) async fn hello(&self, draining: bool) -> Result<HelloResult, Error> {
        let Some(name) = self.name() else {
            return Err(Error::precondition(
                "this server has no name in a cluster; start it with --advertise HOST:PORT",
            ));
        };
        Ok(HelloResult {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: self.state().await?,
            zone: self.zone.clone(),
            draining,
            instance: self.instance,
        })
    }
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::internal("the system has no random numbers"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use forebay_storage::Location;

    use super::*;

    fn identity(folder: &std::path::Path, advertise: Option<&str>) -> Identity {
        let settings = Settings { advertise: advertise.map(str::to_owned), ..Settings::default() };
        let location = Location::parse(&folder.to_string_lossy(), &settings.storage).unwrap();
        Identity::new(&settings, &State::open(location, None, &settings.storage)).unwrap()
    }

    #[tokio::test]
    async fn servers_of_one_state_have_one_id_and_others_another() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = identity(one.path(), Some("a:1")).state().await.unwrap();
        assert_eq!(identity(one.path(), Some("b:1")).state().await.unwrap(), id);
        assert_ne!(identity(other.path(), Some("c:1")).state().await.unwrap(), id);
        assert_eq!(id.len(), 32);
    }

    #[tokio::test]
    async fn a_server_without_a_name_says_how_to_get_one() {
        let folder = tempfile::tempdir().unwrap();
        let error = identity(folder.path(), None).hello(false).await.unwrap_err();
        assert!(error.message().contains("--advertise"), "{error}");
        let hello = identity(folder.path(), Some("a:1")).hello(true).await.unwrap();
        assert_eq!((&*hello.name, hello.draining), ("a:1", true));
    }
}
