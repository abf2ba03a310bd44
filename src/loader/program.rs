//! A loaded program: its server, its kernels in their order, its exit status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};

use crate::backend::cuda::{
    CudaAllocator, CudaError, Function, Globals, Module, Pinned, device_name, max_resident_threads,
    set_stack_size,
};
use crate::cuda::{DeviceClient, KernelState, LaunchError, Launcher, PublishError, Served};
use crate::error::{Cause, ConversationError};
use crate::libc::files::{Access, FilePolicy, Standard};
use crate::libc::{Heap, Services};
use crate::protocol::Abi;
use crate::registry::Registry;
use crate::server::Server;

use super::arguments::Arguments;
use super::complain;
use super::error::LoaderError;
use super::image::Image;
use super::options::{Files, Options};

/// How long a program that has called `exit` may take to end by itself. Its other threads may never.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Failed conversations that are told of.
const REPORTS: u32 = 8;

/// Ports that a server has at least.
const FEWEST_PORTS: u32 = 64;

/// Runs an image on a device and returns the program's exit status.
pub(super) fn run(
    options: &Options,
    image: &Image,
    context: &Arc<CudaContext>,
) -> Result<i32, LoaderError> {
    if let Some(stack) = options.stack {
        set_stack_size(context, stack)?;
    }
    let stream = context.new_stream().map_err(|error| CudaError::new("cuStreamCreate", error))?;
    let module = match Module::load(context, image) {
        Ok(module) => module,
        Err(failed) => {
            let device = device_name(context).unwrap_or_default();
            return Err(LoaderError::not_loaded(options.image.clone(), &device, failed));
        }
    };
    let kernels = Kernels::find(options, image, &module)?;
    let allocator = Arc::new(CudaAllocator::new(context.clone()));
    let argv: Vec<_> = std::iter::once(options.image.clone().into_os_string())
        .chain(options.arguments.iter().cloned())
        .collect();
    let arguments = Arguments::new(&allocator, &argv, std::env::vars_os())?;
    let arrays = Arrays::fill(image, &module, &stream, &allocator)?;
    let (server, services) = serve(options, &module, &stream)?;

    let session = Session { options, stream: &stream, server: &server, began: Instant::now() };
    let result = session.run(&kernels, &arguments);
    let running = match &result {
        Ok(ended) => ended.kernel == KernelState::StillRuns,
        Err(LoaderError::Launch { error, .. }) => matches!(
            error,
            LaunchError::TimedOut { kernel: KernelState::StillRuns, .. }
                | LaunchError::ServerStopped(_)
                | LaunchError::Worker(_)
        ),
        Err(_) => false,
    };
    // What it wrote, before anything that could wait. The file table counts what it cannot write.
    let _ = services.files().close_all();
    if running {
        // To give memory back would wait for the kernel, which ends with this process.
        std::mem::forget((services, server, arguments, arrays, module, stream, allocator));
        std::mem::forget(context.clone());
    }
    result.map(|ended| ended.status)
}

/// Makes the server and publishes it, where the program has a client.
fn serve(
    options: &Options,
    module: &Module,
    stream: &Arc<CudaStream>,
) -> Result<(Arc<Server<CudaAllocator>>, Services), LoaderError> {
    let context = stream.context();
    let client = match DeviceClient::find(module, stream) {
        Ok(client) => Some(client),
        Err(PublishError::NoClient) => None,
        Err(error) => return Err(error.into()),
    };
    let registry = Registry::new();
    let services = services(options, context, client.is_some())?;
    services.register(&registry)?;
    let abi = client.as_ref().map_or(Ok(Abi::Llvm20), |client| abi(options, client))?;
    let ports = match options.ports {
        Some(ports) => ports.min(abi.max_ports()),
        None => ports(options, context, abi)?,
    };
    let server = Server::builder(CudaAllocator::new(context.clone()))
        .abi(abi)
        .ports(if client.is_some() { ports } else { 1 })
        .registry(&registry)
        .on_error(report())
        .build()?;
    if let Some(client) = client {
        client.publish(&server)?;
    }
    Ok((Arc::new(server), services))
}

/// Tells of failed conversations, the first ones only: a program may have thousands of threads.
fn report() -> impl Fn(&ConversationError) + Send + Sync {
    let left = AtomicU32::new(REPORTS);
    move |error| {
        // Those are told of once, as the reason for the shutdown.
        if matches!(error.cause, Cause::ShutDown) {
            return;
        }
        let count = |left: u32| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(1) => complain(&Last(error)),
            Ok(_) => complain(error),
            Err(_) => {}
        }
    }
}

/// The last failed conversation that is told of.
#[derive(Debug, thiserror::Error)]
#[error("{0}; more like this is not reported")]
struct Last<'e>(&'e ConversationError);

/// What the program may do: as a local one.
fn services(
    options: &Options,
    context: &Arc<CudaContext>,
    calls: bool,
) -> Result<Services, LoaderError> {
    let files = match options.files {
        Files::None => FilePolicy::denied(),
        Files::Read => FilePolicy::everything(Access::ReadOnly),
        Files::All => FilePolicy::everything(Access::ReadWrite),
    };
    let mut services = Services::builder().standard(Standard::process()).files(files);
    if options.system {
        services = services.allow_system();
    }
    if calls && options.pool > 0 {
        services = services.heap(Heap::pool(CudaAllocator::new(context.clone()), options.pool)?);
    }
    Ok(services.build())
}

/// The interface that the program's client has.
fn abi(options: &Options, client: &DeviceClient<'_>) -> Result<Abi, LoaderError> {
    match (client.abi(), options.abi) {
        // What the user says is checked against the object by publishing.
        (_, Some(abi)) | (Ok(abi), None) => Ok(abi),
        (Err(PublishError::UnknownSize { symbol, source }), None) => match source {
            crate::protocol::abi::UnknownSymbol::Pointer => Err(LoaderError::WhichAbi { symbol }),
            source => Err(PublishError::UnknownSize { symbol, source }.into()),
        },
        (Err(error), None) => Err(error.into()),
    }
}

/// A port for each warp that can run at a time.
fn ports(options: &Options, context: &CudaContext, abi: Abi) -> Result<u32, CudaError> {
    let product = |sizes: [u32; 3]| sizes.into_iter().map(u64::from).fold(1, u64::saturating_mul);
    let warps = product(options.blocks).saturating_mul(product(options.threads).div_ceil(32));
    let resident = max_resident_threads(context)? / 32;
    let ports = warps.min(resident).min(abi.max_ports().into()) as u32;
    Ok(ports.max(FEWEST_PORTS))
}

/// The kernels of a program, and how many of their parameters a loader gives.
struct Kernels<'m> {
    begin: Option<(Function<'m>, usize)>,
    start: (Function<'m>, usize),
    end: Option<(Function<'m>, usize)>,
}

impl<'m> Kernels<'m> {
    fn find(options: &Options, image: &Image, module: &'m Module) -> Result<Self, LoaderError> {
        // What each takes at most, and where nobody can tell.
        let kernel = |kernel: &'static str, most: usize, usual: usize| {
            let Some(function) = module.function(kernel)? else {
                return Ok(None);
            };
            let told = match image.parameters(kernel) {
                Some(parameters) => Some(parameters),
                None => function.parameters()?,
            };
            match told.unwrap_or(usual) {
                parameters if parameters > most => {
                    Err(LoaderError::Parameters { kernel, parameters, given: most })
                }
                parameters => Ok(Some((function, parameters))),
            }
        };
        let start = kernel("_start", 4, 4)?;
        let start = start.ok_or_else(|| LoaderError::NoStart { path: options.image.clone() })?;
        Ok(Kernels { begin: kernel("_begin", 3, 3)?, start, end: kernel("_end", 1, 1)? })
    }
}

/// How a program ended.
struct Ended {
    status: i32,
    kernel: KernelState,
}

struct Session<'s> {
    options: &'s Options,
    stream: &'s Arc<CudaStream>,
    server: &'s Arc<Server<CudaAllocator>>,
    began: Instant,
}

impl Session<'_> {
    fn run(&self, kernels: &Kernels<'_>, arguments: &Arguments) -> Result<Ended, LoaderError> {
        const ONE: [u32; 3] = [1; 3];
        let ended = |served: &Served, status| Ended {
            status: served.exit.map_or(status, |exit| exit.status),
            kernel: served.kernel,
        };
        if let Some((function, count)) = kernels.begin {
            let served = self.launch("_begin", function, ONE, ONE, &arguments.parameters(count))?;
            if served.exit.is_some() {
                return Ok(ended(&served, 0));
            }
        }
        let (function, count) = kernels.start;
        let parameters = arguments.parameters(count);
        let (blocks, threads) = (self.options.blocks, self.options.threads);
        let served = self.launch("_start", function, blocks, threads, &parameters)?;
        let status = arguments.result();
        let Some((function, count)) = kernels.end else {
            return Ok(ended(&served, status));
        };
        if served.exit.is_some() {
            return Ok(ended(&served, status));
        }
        // Older libraries end with exit(status), which the server reports; newer ones return.
        let parameters = &status.to_le_bytes()[..4 * count];
        let served = self.launch("_end", function, ONE, ONE, parameters)?;
        Ok(ended(&served, status))
    }

    fn launch(
        &self,
        kernel: &'static str,
        function: Function<'_>,
        blocks: [u32; 3],
        threads: [u32; 3],
        parameters: &[u8],
    ) -> Result<Served, LoaderError> {
        let left = self.options.timeout.map(|limit| limit.saturating_sub(self.began.elapsed()));
        Launcher::new(self.server)
            .timeout(left)
            .exit_grace(EXIT_GRACE)
            .run(self.stream, || function.launch(self.stream, blocks, threads, parameters))
            .map_err(|mut error| {
                // The time is the program's, of which this kernel had what was left.
                if let (LaunchError::TimedOut { after, .. }, Some(limit)) =
                    (&mut error, self.options.timeout)
                {
                    *after = limit;
                }
                LoaderError::Launch { kernel, error }
            })
    }
}

/// The arrays of constructors and destructors, which no NVIDIA linker makes: the image has their
/// entries one by one, and the start code finds the arrays through pointers (PROTOCOL.md §1.5).
#[derive(Debug, Default)]
struct Arrays {
    /// Kept for as long as the program runs.
    memory: Vec<Pinned>,
}

impl Arrays {
    fn fill(
        image: &Image,
        module: &Module,
        stream: &Arc<CudaStream>,
        allocator: &Arc<CudaAllocator>,
    ) -> Result<Self, CudaError> {
        let mut arrays = Arrays::default();
        for array in ["init", "fini"] {
            let mut functions = Vec::new();
            for name in entries(image.symbols(), &format!("__{array}_array_object_")) {
                if let Some(entry) = module.global(stream, name)? {
                    functions.extend(entry.read_pointer()?.to_le_bytes());
                }
            }
            if functions.is_empty() {
                continue;
            }
            let memory = Pinned::new(allocator, functions.len())?;
            memory.store(0, &functions);
            for (end, offset) in [("start", 0), ("end", functions.len())] {
                let pointer = module.global(stream, &format!("__{array}_array_{end}"))?;
                if let Some(pointer) = pointer.filter(|pointer| pointer.size() == 8) {
                    pointer.write(&memory.device(offset).to_le_bytes())?;
                }
            }
            arrays.memory.push(memory);
        }
        Ok(arrays)
    }
}

/// The names with that prefix, by the priority at their ends.
fn entries<'n>(names: &'n [String], prefix: &str) -> Vec<&'n str> {
    let priority = |name: &str| -> Option<u32> { name.rsplit_once('_')?.1.parse().ok() };
    let ours = names.iter().map(String::as_str).filter(|name| name.starts_with(prefix));
    let mut entries: Vec<_> = ours.filter_map(|name| Some((priority(name)?, name))).collect();
    entries.sort_by_key(|(priority, _)| *priority);
    entries.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_come_in_the_order_of_their_priorities() {
        let names = [
            "x",
            "__init_array_object_b_65535",
            "__init_array_object_a_101",
            "__fini_array_object_c_1",
        ];
        let names = names.map(str::to_owned);
        assert_eq!(
            entries(&names, "__init_array_object_"),
            ["__init_array_object_a_101", "__init_array_object_b_65535"]
        );
    }
}
