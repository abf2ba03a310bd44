//! Programs for NVIDIA GPUs.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::backend::Pinned;
use crate::backend::cuda::{
    CudaAllocator, CudaError, Function, Globals, Module, device_count, device_name,
    max_resident_threads, set_stack_size,
};
use crate::cuda::{DeviceClient, PublishError, serve};
use crate::launch::{LaunchError, Served, Watch};
use crate::libc::Heap;
use crate::protocol::abi::UnknownSymbol;
use crate::protocol::{Abi, SymbolKind};
use crate::server::Server;

use super::arguments::Arguments;
use super::error::{LoaderError, RuntimeError};
use super::image::Image;
use super::options::Options;
use super::program::{self, Host, Kernel, Launch, Loaded};
use super::signals::Signals;

/// The lanes of a warp.
const LANES: u32 = 32;

/// The devices, a line each.
pub(super) fn devices() -> Result<Vec<String>, LoaderError> {
    let device = |device| Ok(device_name(CudaAllocator::open(device)?.context())?);
    (0..device_count()?).map(device).collect()
}

/// Runs an image and returns the program's exit status.
pub(super) fn run(
    options: &Options,
    image: &Image,
    signals: Option<&Signals>,
) -> Result<i32, LoaderError> {
    let allocator = Arc::new(CudaAllocator::open(options.device.unwrap_or(0))?);
    let context = allocator.context();
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
    let parameters = parameters(options, image, &module)?;
    let arguments = Arguments::new(&allocator, &program::argv(options), std::env::vars_os())?;
    let arrays = Arrays::fill(image, &module, &stream, &allocator)?;
    let (server, host) = publish(options, &module, &stream)?;
    let loaded = Program { server, arguments, _arrays: arrays, parameters, module, stream };
    program::run(options, signals, loaded, host)
}

/// Makes the server and publishes it, where the program has a client.
fn publish(
    options: &Options,
    module: &Module,
    stream: &Arc<CudaStream>,
) -> Result<(Arc<Server<CudaAllocator>>, Host), LoaderError> {
    let context = stream.context();
    let allocator = || CudaAllocator::new(context.clone());
    let client = match DeviceClient::find(module, stream) {
        Ok(client) => client,
        Err(PublishError::NoClient) => {
            let host = Host::new(options, None)?;
            return Ok((host.serve(allocator(), Abi::Llvm20, 1, LANES)?, host));
        }
        Err(error) => return Err(error.into()),
    };
    let heap = match options.pool {
        0 => None,
        size => Some(Heap::pool(allocator(), size)?),
    };
    let host = Host::new(options, heap)?;
    let abi = abi(options, &client)?;
    let resident = max_resident_threads(context)? / u64::from(LANES);
    let ports = program::ports(options, abi, LANES, resident);
    let server = host.serve(allocator(), abi, ports, LANES)?;
    client.publish(&server)?;
    Ok((server, host))
}

/// The interface that the program's client has.
fn abi(options: &Options, client: &DeviceClient<'_>) -> Result<Abi, LoaderError> {
    match client.abi() {
        Ok(abi) if options.abi.is_none_or(|asked| asked == abi) => Ok(abi),
        Ok(abi) => Err(LoaderError::OtherAbi { symbol: client.symbol().to_owned(), abi }),
        Err(PublishError::UnknownSize { symbol, source: UnknownSymbol::Pointer }) => {
            let asked = options.abi.filter(|abi| abi.symbol_kind() == SymbolKind::Pointer);
            asked.ok_or(LoaderError::WhichAbi { symbol })
        }
        Err(error) => Err(error.into()),
    }
}

/// How many of its parameters each kernel gets, by [`Kernel`]; `None` for one that is not there.
fn parameters(
    options: &Options,
    image: &Image,
    module: &Module,
) -> Result<[Option<usize>; 3], LoaderError> {
    let count = |kernel: Kernel| {
        let Some(function) = module.function(kernel.name())? else {
            return Ok(None);
        };
        let told = match image.parameters(kernel.name()) {
            Some(parameters) => Some(parameters),
            None => function.parameters()?,
        };
        // Where nobody can tell: what is usual.
        kernel.checked(told.unwrap_or(kernel.most_parameters())).map(Some)
    };
    let counts = [count(Kernel::Begin)?, count(Kernel::Start)?, count(Kernel::End)?];
    if counts[Kernel::Start as usize].is_none() {
        return Err(LoaderError::NoStart { path: options.image.clone() });
    }
    Ok(counts)
}

/// A program in a context. In the order in which its parts may go.
struct Program {
    server: Arc<Server<CudaAllocator>>,
    arguments: Arguments<CudaAllocator>,
    _arrays: Arrays,
    parameters: [Option<usize>; 3],
    module: Module,
    stream: Arc<CudaStream>,
}

impl Program {
    fn function(&self, kernel: Kernel) -> Result<Function<'_>, CudaError> {
        let function = self.module.function(kernel.name())?;
        Ok(function.expect("it was there when its parameters were counted"))
    }

    /// The bytes of a kernel's parameters.
    fn bytes(&self, launch: Launch) -> Vec<u8> {
        let count = self.parameters[launch.kernel as usize].unwrap_or(0);
        if launch.kernel == Kernel::End {
            return launch.status.to_le_bytes()[..4 * count].to_vec();
        }
        let words = self.arguments.values().map(u64::to_le_bytes).concat();
        words[..[0, 4, 16, 24, 32][count]].to_vec()
    }
}

impl Loaded for Program {
    type Allocator = CudaAllocator;

    fn server(&self) -> &Arc<Server<CudaAllocator>> {
        &self.server
    }

    fn has(&self, kernel: Kernel) -> bool {
        self.parameters[kernel as usize].is_some()
    }

    fn launch(
        &self,
        watch: &Watch<'_, CudaAllocator>,
        launch: Launch,
    ) -> Result<Served, LaunchError<RuntimeError>> {
        let function = self.function(launch.kernel);
        let function = function.map_err(|error| LaunchError::NotLaunched(error.into()))?;
        let bytes = self.bytes(launch);
        serve(watch, &self.stream, || {
            function.launch(&self.stream, launch.blocks, launch.threads, &bytes)
        })
    }

    fn result(&self) -> i32 {
        self.arguments.result()
    }
}

/// The arrays of constructors and destructors, which no NVIDIA linker makes: the image has their
/// entries one by one, and the start code finds the arrays through pointers (PROTOCOL.md §1.5).
#[derive(Debug, Default)]
struct Arrays {
    /// Kept for as long as the program runs.
    memory: Vec<Pinned<CudaAllocator>>,
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
