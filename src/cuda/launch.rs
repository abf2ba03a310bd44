//! Launching a kernel, serving it, and telling how it ended.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaStream, DriverError};

use crate::backend::SharedAllocator;
use crate::backend::cuda::{CudaError, has_ended, record};
use crate::launch::{End, Served, Watch};
use crate::server::Server;
use crate::worker::{IdlePolicy, Worker};

/// Why a launch did not end as it should. Where a failure [says so](CudaError::breaks_context), the
/// context can do nothing any more.
pub type LaunchError = crate::launch::LaunchError<CudaError>;

/// Launches a kernel and serves its calls until it ends.
///
/// Starts polling threads for `server`, calls `launch`, waits until what it put on `stream` has
/// ended, serves what the kernel had sent by then, and stops the threads. The calling thread does not
/// block in the driver. Nothing that the kernel sent before its end is lost.
///
/// # Errors
/// [`LaunchError`]; [`LaunchError::Failed`] where the kernel faulted.
pub fn serve_launch<A: SharedAllocator + 'static, R>(
    server: &Arc<Server<A>>,
    stream: &Arc<CudaStream>,
    launch: impl FnOnce() -> Result<R, DriverError>,
) -> Result<Served, LaunchError> {
    Launcher::new(server).launch(stream, launch)
}

/// Waits for all work that `stream` has now, which `worker` serves meanwhile.
///
/// For programs whose [`Worker`] runs all the time. What the kernels sent before their end has been
/// served when this returns.
///
/// # Errors
/// As [`serve_launch`].
pub fn wait<A: SharedAllocator + 'static>(
    worker: &Worker<A>,
    stream: &Arc<CudaStream>,
) -> Result<Served, LaunchError> {
    let watch = Watch::new(worker.server());
    let event = mark(stream)?;
    let ended = match record(&event, stream) {
        Ok(()) => watch.watch(worker, || has_ended(&event)),
        Err(error) => End::Failed(error),
    };
    // What a failed conversation says is the server's to keep.
    let _ = worker.server().drain();
    watch.conclude(ended)
}

/// Settings of a served launch. [`serve_launch`] has the defaults.
pub struct Launcher<'s, A: SharedAllocator + 'static>(Watch<'s, A>);

impl<'s, A: SharedAllocator + 'static> Launcher<'s, A> {
    /// Launches for this server: a polling thread for each shard, no time limit.
    pub fn new(server: &'s Arc<Server<A>>) -> Self {
        Launcher(Watch::new(server))
    }

    /// How many threads poll.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.0.threads = threads;
        self
    }

    /// How they wait for a silent device.
    #[must_use]
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.0.idle = idle;
        self
    }

    /// How long a kernel may run. The driver has no way to end one kernel: after this time the wait
    /// ends, not the kernel.
    #[must_use]
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.0.timeout = limit.into();
        self
    }

    /// How long to wait for the kernel's end once it has asked to exit. Without it, until it ends.
    #[must_use]
    pub fn exit_grace(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.0.exit_grace = limit.into();
        self
    }

    /// Launches and serves, as [`serve_launch`] does.
    ///
    /// # Errors
    /// As [`serve_launch`].
    pub fn launch<R>(
        &self,
        stream: &Arc<CudaStream>,
        launch: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<Served, LaunchError> {
        serve(&self.0, stream, || {
            launch().map(drop).map_err(|error| CudaError::new("the launch", error))
        })
    }
}

/// Launches by that function, and serves until what it put on the stream has ended.
pub(crate) fn serve<A, E>(
    watch: &Watch<'_, A>,
    stream: &Arc<CudaStream>,
    launch: impl FnOnce() -> Result<(), CudaError>,
) -> Result<Served, crate::launch::LaunchError<E>>
where
    A: SharedAllocator + 'static,
    E: Error + From<CudaError> + 'static,
{
    // Made first: what fails after the launch leaves a kernel behind.
    let event = mark(stream)?;
    watch.serve(|| {
        launch()?;
        let recorded = record(&event, stream);
        Ok(move || {
            recorded.clone()?;
            // Never blocks in the driver, which holds locks there that other threads' calls need.
            Ok(has_ended(&event)?)
        })
    })
}

/// An event for the end of what is on a stream.
fn mark<E: Error + From<CudaError>>(
    stream: &Arc<CudaStream>,
) -> Result<CudaEvent, crate::launch::LaunchError<E>> {
    let event = stream.context().new_event(None);
    event.map_err(|error| {
        crate::launch::LaunchError::NotLaunched(CudaError::new("cuEventCreate", error).into())
    })
}

impl<A: SharedAllocator + 'static> fmt::Debug for Launcher<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Launcher").field(&self.0).finish()
    }
}
