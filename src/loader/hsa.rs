//! Programs for AMD GPUs.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::hsa::{
    self, DeviceMemory, Executable, HsaAllocator, HsaError, Kernel as Loadable, Queue, Variable,
};
use crate::device::CLIENT_SYMBOLS;
use crate::launch::{LaunchError, Served, Watch};
use crate::libc::Heap;
use crate::protocol::Abi;
use crate::protocol::abi::UnknownSymbol;
use crate::server::Server;

use super::arguments::Arguments;
use super::code_object::{CodeObject, KernelInfo, processor};
use super::error::{LoaderError, RuntimeError};
use super::image::{Image, ImageError};
use super::options::Options;
use super::program::{self, Host, Kernel, Launch, Loaded};
use super::signals::Signals;

/// The variable of LLVM's C library with the ticks of the device's clock in a second.
const CLOCK_SYMBOL: &str = "__llvm_libc_clock_freq";

/// The stack of each thread where the compiler does not know how much it takes, as in LLVM's loader.
const DYNAMIC_STACK: u32 = 16 << 10;

/// The devices, a line each.
pub(super) fn devices() -> Result<Vec<String>, LoaderError> {
    let line = |device: hsa::GpuAgent| match device.isas.first() {
        Some(isa) => format!("{} ({})", device.name, processor(isa)),
        None => device.name,
    };
    Ok(hsa::devices()?.into_iter().map(line).collect())
}

/// Runs an image and returns the program's exit status.
pub(super) fn run(
    options: &Options,
    image: &Image,
    signals: Option<&Signals>,
) -> Result<i32, LoaderError> {
    let path = || options.image.clone();
    let object = CodeObject::read(image.as_bytes());
    let object = object.map_err(|reason| LoaderError::Image {
        path: path(),
        source: ImageError::BadMetadata(reason),
    })?;
    let allocator = HsaAllocator::open(choose(options, &object)?)?;
    let executable = Executable::load(&allocator, image.as_bytes()).map_err(|error| {
        let advice = format!("compile it for this GPU, {} ({error})", allocator.agent().name);
        LoaderError::NotLoaded { path: path(), reason: advice }
    })?;
    let kernel = |kernel: Kernel| find(options, &object, &executable, kernel);
    let kernels = [kernel(Kernel::Begin)?, kernel(Kernel::Start)?, kernel(Kernel::End)?];
    let Some(start) = &kernels[Kernel::Start as usize] else {
        return Err(LoaderError::NoStart { path: path() });
    };
    let lanes = start.lanes;
    if let Some(other) = kernels.iter().flatten().find(|kernel| kernel.lanes != lanes) {
        return Err(LoaderError::Lanes { path: path(), lanes: [lanes, other.lanes] });
    }
    let threads = options.threads.into_iter().map(u64::from).product();
    if threads > start.most_threads.into() {
        return Err(LoaderError::Threads { threads, most: start.most_threads });
    }
    set_clock(&executable, &allocator)?;
    let memory = Arc::new(allocator.clone());
    let arguments = Arguments::new(&memory, &program::argv(options), std::env::vars_os())?;
    let (server, host) = publish(options, &executable, &allocator, lanes)?;
    let queue = Queue::new(&allocator)?;
    let program = Program { queue, arguments, kernels, executable, server };
    program::run(options, signals, program, host)
}

/// The device that the user names, or the first that runs the code.
fn choose(options: &Options, object: &CodeObject) -> Result<usize, LoaderError> {
    let devices = hsa::devices()?;
    let runs = |device: &hsa::GpuAgent| device.isas.iter().any(|isa| object.runs_on(isa));
    let chosen = match options.device {
        Some(ordinal) => match devices.get(ordinal) {
            Some(device) => runs(device).then_some(ordinal),
            None => {
                return Err(HsaError::NoSuchDevice { ordinal, devices: devices.len() }.into());
            }
        },
        None => devices.iter().position(runs),
    };
    chosen.ok_or_else(|| {
        let isas = devices.iter().flat_map(|device| &device.isas);
        let isas = isas.map(|isa| processor(isa));
        LoaderError::OtherGpu {
            path: options.image.clone(),
            processor: object.processor().to_owned(),
            there: isas.collect::<Vec<_>>().join(", "),
        }
    })
}

/// A kernel that the program has.
#[derive(Debug)]
struct Found {
    kernel: Loadable,
    lanes: u32,
    most_threads: u32,
    info: KernelInfo,
}

fn find(
    options: &Options,
    object: &CodeObject,
    executable: &Executable,
    kernel: Kernel,
) -> Result<Option<Found>, LoaderError> {
    let Some(info) = object.kernel(kernel.name()) else {
        return Ok(None);
    };
    kernel.checked(info.parameters())?;
    if let Some(reason) = info.unfillable() {
        let (path, source) = (options.image.clone(), ImageError::BadMetadata(reason));
        return Err(LoaderError::Image { path, source });
    }
    let Some(mut found) = executable.kernel(&format!("{}.kd", kernel.name()))? else {
        return Ok(None);
    };
    let stack = options.stack.map(|stack| u32::try_from(stack).unwrap_or(u32::MAX));
    if let Some(stack) = stack.or(found.dynamic_stack.then_some(DYNAMIC_STACK)) {
        found = found.with_stack(stack);
    }
    let (lanes, most_threads) = (info.lanes, info.most_threads);
    Ok(Some(Found { kernel: found, lanes, most_threads, info: info.clone() }))
}

/// Tells the program how fast its clock is, where it asks and the runtime knows.
fn set_clock(executable: &Executable, allocator: &HsaAllocator) -> Result<(), HsaError> {
    if let Some(variable) = executable.variable(CLOCK_SYMBOL)?
        && variable.size() == 8
        && let Some(hertz) = allocator.agent().clock_hz
    {
        executable.write(&variable, &hertz.to_le_bytes())?;
    }
    Ok(())
}

/// The client object and its name, where the program has one.
fn client(executable: &Executable) -> Result<Option<(&'static str, Variable)>, LoaderError> {
    let mut found: Option<(&str, Variable)> = None;
    for symbol in CLIENT_SYMBOLS {
        match (executable.variable(symbol)?, &found) {
            (None, _) => {}
            (Some(variable), None) => found = Some((symbol, variable)),
            (Some(_), Some((first, _))) => {
                let reason = format!("the program has {first} as well, and one server serves one");
                return Err(LoaderError::ClientObject { symbol, reason });
            }
        }
    }
    Ok(found)
}

/// Makes the server and publishes it, where the program has a client.
fn publish(
    options: &Options,
    executable: &Executable,
    allocator: &HsaAllocator,
    lanes: u32,
) -> Result<(Arc<Server<HsaAllocator>>, Host), LoaderError> {
    let Some((symbol, variable)) = client(executable)? else {
        let host = Host::new(options, None)?;
        return Ok((host.serve(allocator.clone(), Abi::Llvm20, 1, lanes)?, host));
    };
    let told = Abi::from_symbol_size(variable.size() as u64).map_err(|error| match error {
        UnknownSymbol::Pointer => {
            "a pointer to a client, as of LLVM 17 to 19: programs of LLVM 20 and \
                                   later run on AMD GPUs here"
                .to_owned()
        }
        error @ UnknownSymbol::Size(_) => error.to_string(),
    });
    let abi = told.map_err(|reason| LoaderError::ClientObject { symbol, reason })?;
    if let Some(asked) = options.abi
        && asked != abi
    {
        return Err(LoaderError::OtherAbi { symbol: symbol.to_owned(), abi });
    }
    let heap = match options.pool {
        0 => None,
        size => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let memory = DeviceMemory::new(allocator, size)?;
            Some(Heap::of(memory.address(), memory.len() as u64, memory))
        }
    };
    let host = Host::new(options, heap)?;
    let resident = allocator.agent().max_waves.into();
    let ports = program::ports(options, abi, lanes, resident);
    let server = host.serve(allocator.clone(), abi, ports, lanes)?;
    executable.write(&variable, server.client_image().as_bytes())?;
    Ok((server, host))
}

/// A program on a device. In the order in which its parts may go: the queue ends what still runs.
struct Program {
    queue: Queue,
    arguments: Arguments<HsaAllocator>,
    kernels: [Option<Found>; 3],
    #[expect(dead_code, reason = "keeps the code on the device")]
    executable: Executable,
    server: Arc<Server<HsaAllocator>>,
}

impl Loaded for Program {
    type Allocator = HsaAllocator;

    fn server(&self) -> &Arc<Server<HsaAllocator>> {
        &self.server
    }

    fn has(&self, kernel: Kernel) -> bool {
        self.kernels[kernel as usize].is_some()
    }

    fn launch(
        &self,
        watch: &Watch<'_, HsaAllocator>,
        launch: Launch,
    ) -> Result<Served, LaunchError<RuntimeError>> {
        let Launch { kernel, blocks, threads, status } = launch;
        let found = self.kernels[kernel as usize].as_ref().expect("it is one that the program has");
        let values = match kernel {
            Kernel::End => vec![status as u32 as u64],
            Kernel::Begin | Kernel::Start => self.arguments.values().to_vec(),
        };
        let bytes = found.info.kernarg(&values, blocks, threads);
        watch.serve(|| {
            let dispatch = self.queue.dispatch_trusted(&found.kernel, blocks, threads, &bytes, 0);
            let mut dispatch = dispatch.map_err(RuntimeError::from)?;
            Ok(move || dispatch.wait(Duration::ZERO).map_err(RuntimeError::from))
        })
    }

    fn result(&self) -> i32 {
        self.arguments.result()
    }
}
