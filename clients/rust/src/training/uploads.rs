//! Batches on their way to a device.

use super::lanes::Lanes;
use crate::{Batch, Device, DeviceBatch, Error, Place, batches::Source, device::Copier};

/// Copies the batches of all lanes to a device, in the order of steps.
pub(super) struct Uploads {
    lanes: Lanes<Batch>,
    place: Place,
    /// Absent during a copy and after a failed one.
    copier: Option<Box<dyn Copier>>,
}

impl Uploads {
    /// Creates the uploads from `lanes` to `device`.
    pub(super) fn new(lanes: Lanes<Batch>, device: &Device) -> Result<Self, Error> {
        Ok(Self { lanes, place: device.place(), copier: Some(device.copier()?) })
    }
}

impl Source for Uploads {
    type Item = DeviceBatch;

    async fn next(&mut self) -> Result<Option<DeviceBatch>, Error> {
        let Some(batch) = self.lanes.next().await else { return Ok(None) };
        let (batch, place) = (batch?, self.place);
        let failed = || Error::Device("a copy to the device failed".into());
        let mut copier = self.copier.take().ok_or_else(failed)?;
        // A copy can block until the device has completed an earlier one.
        let copied = tokio::task::spawn_blocking(move || {
            let copied = copier.copy(batch.body()).and_then(|memory| DeviceBatch::new(place, &batch, memory));
            (copier, copied)
        });
        let (copier, copied) = copied.await.map_err(|_| failed())?;
        self.copier = Some(copier);
        copied.map(Some)
    }
}
