//! Background tasks of a server.

use tokio_util::task::AbortOnDropHandle;

/// Background tasks that are aborted when this value is dropped.
#[derive(Default)]
pub(crate) struct Tasks {
    handles: Vec<AbortOnDropHandle<()>>,
}

impl Tasks {
    /// Starts a task.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.handles.push(AbortOnDropHandle::new(tokio::spawn(task)));
    }
}
