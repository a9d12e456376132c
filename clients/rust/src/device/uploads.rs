//! Batches on their way to a device.

use super::{Copier, Device, DeviceBatch, Place};
use crate::{Batch, Error, batches::Source, training::Lanes};

/// Copies what the lanes bring, in the order of steps.
pub(crate) struct Uploads {
    lanes: Lanes<Batch>,
    place: Place,
    /// There, unless a copy is being made or failed.
    copier: Option<Box<dyn Copier>>,
}

impl Uploads {
    /// From `lanes` to `device`.
    pub(crate) fn new(lanes: Lanes<Batch>, device: &Device) -> Result<Self, Error> {
        Ok(Self { lanes, place: device.place(), copier: Some(device.backend.copier()?) })
    }
}

impl Source for Uploads {
    type Item = DeviceBatch;

    async fn next(&mut self) -> Result<Option<DeviceBatch>, Error> {
        let Some(batch) = self.lanes.next().await else { return Ok(None) };
        let (batch, place) = (batch?, self.place);
        let lost = || Error::Device("the copy before this one failed".into());
        let mut copier = self.copier.take().ok_or_else(lost)?;
        // It may wait for the device.
        let copied = tokio::task::spawn_blocking(move || {
            let copied = copier.copy(&batch).and_then(|memory| DeviceBatch::new(place, &batch, memory));
            (copier, copied)
        });
        let (copier, copied) = copied.await.map_err(|_| lost())?;
        self.copier = Some(copier);
        copied.map(Some)
    }
}
