//! All opcodes of the C library, as one bundle with a policy.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::call::Call;
use crate::error::{HandlerError, RegisterError};
use crate::handler::{Handling, Request};
use crate::protocol::Opcode;
use crate::registry::Registry;

use super::files::{DEFAULT_MAX_OPEN, Denials as FileDenials, FilePolicy, FileTable, Standard};
use super::heap::Heap;
use super::process;
use super::{memory, opcode, print, stdio, testing};

/// A function of the host program that device code may call by its number.
///
/// It gets the argument bytes of one lane and returns the result of that lane's call.
type HostFunction = Box<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// What device code built with the LLVM C library finds on its host.
///
/// The defaults are the safe ones: standard output and error go to this process, standard input is
/// empty, no file can be opened, no memory allocated, no command run, no function called, and `exit`
/// is [reported](crate::Server::exit_request). One line of the [builder](Self::builder) opens each.
/// What is denied is [counted](Self::denials), and device code gets what C returns for a failure.
///
/// Make one for each server and let the server [own](crate::Builder::owning) it: open files are
/// closed and memory is given back when it is dropped. Handlers that outlive it refuse.
///
/// ```
/// use hostcall::libc::Services;
/// use hostcall::libc::files::{Captured, Standard};
/// use hostcall::{Registry, Simulation};
/// let (registry, output) = (Registry::new(), Captured::new());
/// let standard = Standard::default().stderr(output.clone());
/// let services = Services::builder().standard(standard).build();
/// services.register(&registry)?;
/// let report = Simulation::new(&registry).run(async |warp| {
///     warp.write_stderr(|lane| format!("{lane} ")).await?;
///     warp.exit(3).await
/// })?;
/// assert!(output.contents().starts_with(b"0 1 2 3 "));
/// assert_eq!(report.exit.map(|exit| exit.status), Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Services {
    state: Arc<State>,
}

/// Settings of [`Services`].
pub struct ServicesBuilder {
    standard: Standard,
    files: FilePolicy,
    max_open_files: usize,
    heap: Option<Heap>,
    functions: BTreeMap<u64, HostFunction>,
    system: bool,
}

/// What has been denied so far, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// Opening, removing or renaming of files.
    pub files: FileDenials,
    /// Commands.
    pub commands: u64,
    /// Calls of functions that are not registered.
    pub functions: u64,
    /// Allocations without a heap.
    pub allocations: u64,
}

pub(super) struct State {
    pub(super) files: FileTable,
    /// Whether opening, reading or writing a file may wait, as with a FIFO.
    pub(super) files_may_block: bool,
    pub(super) heap: Option<Heap>,
    pub(super) functions: BTreeMap<u64, HostFunction>,
    pub(super) system: bool,
    pub(super) denied_commands: AtomicU64,
    pub(super) denied_functions: AtomicU64,
    pub(super) denied_allocations: AtomicU64,
}

impl Services {
    /// Settings, the safe ones at first.
    pub fn builder() -> ServicesBuilder {
        ServicesBuilder {
            standard: Standard::default(),
            files: FilePolicy::denied(),
            max_open_files: DEFAULT_MAX_OPEN,
            heap: None,
            functions: BTreeMap::new(),
            system: false,
        }
    }

    /// Registers a handler for every opcode of the library.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`] at the first opcode that has a handler already; those before
    /// it have been registered then. Register your own replacements afterwards, by
    /// [`Registry::replace`].
    pub fn register(&self, registry: &Registry) -> Result<(), RegisterError> {
        let state = Arc::downgrade(&self.state);
        registry.register(opcode::NOOP, |_: Request<'_>| Ok(Handling::Done))?;
        stdio::register(registry, &state)?;
        print::register(registry, &state)?;
        memory::register(registry, &state)?;
        process::register(registry, &state)?;
        testing::register(registry)
    }

    /// What has been denied so far.
    pub fn denials(&self) -> Denials {
        let state = &self.state;
        Denials {
            files: state.files.stats().denials,
            commands: state.denied_commands.load(Ordering::Relaxed),
            functions: state.denied_functions.load(Ordering::Relaxed),
            allocations: state.denied_allocations.load(Ordering::Relaxed),
        }
    }

    /// The files that device code has open.
    pub fn files(&self) -> &FileTable {
        &self.state.files
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        // Work on the pool may hold the table for as long as it waits; the files go now. What could
        // not be written is counted there.
        let _ = self.state.files.close_all();
    }
}

impl ServicesBuilder {
    /// Where the standard streams lead.
    #[must_use]
    pub fn standard(mut self, standard: Standard) -> Self {
        self.standard = standard;
        self
    }

    /// Which files may be opened, removed and renamed. None by default.
    #[must_use]
    pub fn files(mut self, policy: FilePolicy) -> Self {
        self.files = policy;
        self
    }

    /// How many files may be open at once. 256 by default.
    #[must_use]
    pub fn max_open_files(mut self, files: usize) -> Self {
        self.max_open_files = files;
        self
    }

    /// Where `malloc` gets its memory. Without a heap it returns null.
    #[must_use]
    pub fn heap(mut self, heap: Heap) -> Self {
        self.heap = Some(heap);
        self
    }

    /// Lets device code call a function: where it would name a host address it names `id`. The
    /// function gets the argument bytes of one lane and returns that lane's result. It runs on the
    /// polling thread. A second function of the same id replaces the first.
    #[must_use]
    pub fn host_function(
        mut self,
        id: u64,
        function: impl Fn(&[u8]) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.functions.insert(id, Box::new(function));
        self
    }

    /// Lets device code run any command of this machine's shell.
    #[must_use]
    pub fn allow_system(mut self) -> Self {
        self.system = true;
        self
    }

    /// Makes the services. No handler knows of them yet: [register](Services::register) them.
    pub fn build(self) -> Services {
        let files_may_block = self.files.may_block();
        let files = FileTable::builder()
            .policy(self.files)
            .standard(self.standard)
            .max_open(self.max_open_files)
            .build();
        Services {
            state: Arc::new(State {
                files,
                files_may_block,
                heap: self.heap,
                functions: self.functions,
                system: self.system,
                denied_commands: AtomicU64::new(0),
                denied_functions: AtomicU64::new(0),
                denied_allocations: AtomicU64::new(0),
            }),
        }
    }
}

impl fmt::Debug for ServicesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServicesBuilder")
            .field("functions", &self.functions.keys().collect::<Vec<_>>())
            .field("system", &self.system)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("heap", &self.heap)
            .field("functions", &self.functions.keys().collect::<Vec<_>>())
            .field("system", &self.system)
            .finish_non_exhaustive()
    }
}

/// Registers a conversation that needs the services. Once they are gone it fails.
pub(super) fn serve<F>(
    registry: &Registry,
    opcode: Opcode,
    state: &Weak<State>,
    conversation: impl Fn(Arc<State>, Call) -> F + Send + Sync + 'static,
) -> Result<(), RegisterError>
where
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let state = state.clone();
    registry.register(opcode, move |request: Request<'_>| {
        let state = alive(&state)?;
        Ok(Handling::future(conversation(state, request.detach())))
    })
}

/// Registers a call of one packet, in place.
pub(super) fn answer(
    registry: &Registry,
    opcode: Opcode,
    state: &Weak<State>,
    function: impl Fn(&State, &Request<'_>) + Send + Sync + 'static,
) -> Result<(), RegisterError> {
    let state = state.clone();
    registry.register(opcode, move |request: Request<'_>| {
        function(&*alive(&state)?, &request);
        Ok(Handling::Done)
    })
}

fn alive(state: &Weak<State>) -> Result<Arc<State>, HandlerError> {
    state.upgrade().ok_or_else(|| HandlerError::new("the server that owned the C library is gone"))
}
