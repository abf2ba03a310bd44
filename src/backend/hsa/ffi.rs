//! The part of the HSA runtime's interface that is used here: types, constants, functions, spelled as
//! in `hsa.h`, `hsa_ext_amd.h` and `amd_hsa_signal.h` so that they are found there.
//!
//! This file needs nothing else of the crate: `tests/hsa.rs` includes it, and has a C compiler compare
//! every item with the headers.

use std::error::Error;
use std::ffi::{c_char, c_void};

use libloading::Library;

/// Structures, and for the test their layout.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident = $c:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(super) struct $name { $(pub(super) $field: $type,)* }
        )*

        /// A structure: its name here and in C, size, and each field's name, offset and size.
        #[cfg(test)]
        pub(super) type Struct =
            (&'static str, &'static str, usize, Vec<(&'static str, usize, usize)>);

        #[cfg(test)]
        pub(super) fn structs() -> Vec<Struct> {
            vec![$((
                stringify!($name),
                stringify!($c),
                size_of::<$name>(),
                vec![$((
                    stringify!($field),
                    core::mem::offset_of!($name, $field),
                    size_of::<$type>(),
                )),*],
            )),*]
        }
    };
}

/// Names of other types, and for the test what they are in C.
macro_rules! names {
    ($($name:ident = $c:literal: $type:ty;)*) => {
        $(pub(super) type $name = $type;)*

        /// A type: its name here and in C, and its size.
        #[cfg(test)]
        pub(super) const NAMES: &[(&str, &str, usize)] =
            &[$((stringify!($name), $c, size_of::<$name>())),*];
    };
}

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub(super) const $name: $type = $value;)*

        #[cfg(test)]
        pub(super) const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, from a library that stays loaded for as long as this is there.
        #[derive(Debug)]
        pub(super) struct Functions {
            _library: Library,
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: Library) -> Result<Self, LoadError> {
                Ok(Functions {
                    $(
                        // SAFETY: the function's type is that of the runtime's headers, which a
                        // test compares. It is used with its library only.
                        $name: unsafe {
                            *library
                                .get(stringify!($name))
                                .map_err(|_| LoadError::Function(stringify!($name)))?
                        },
                    )*
                    _library: library,
                })
            }
        }

        /// A function: its name, types of arguments and type of result.
        #[cfg(test)]
        pub(super) type Function = (&'static str, &'static [&'static str], &'static str);

        #[cfg(test)]
        pub(super) const FUNCTIONS: &[Function] = &[$((
            stringify!($name),
            &[$(stringify!($type)),*],
            concat!($(stringify!($result))?),
        )),*];
    };
}

structs! {
    Agent = hsa_agent_t { handle: u64, }
    Signal = hsa_signal_t { handle: u64, }
    Isa = hsa_isa_t { handle: u64, }
    MemoryPool = hsa_amd_memory_pool_t { handle: u64, }
    CodeObjectReader = hsa_code_object_reader_t { handle: u64, }
    RawExecutable = hsa_executable_t { handle: u64, }
    LoadedCodeObject = hsa_loaded_code_object_t { handle: u64, }
    Symbol = hsa_executable_symbol_t { handle: u64, }

    /// A queue, as far as its user may look into it.
    RawQueue = hsa_queue_t {
        r#type: u32,
        features: u32,
        base_address: *mut c_void,
        doorbell_signal: Signal,
        size: u32,
        reserved1: u32,
        id: u64,
    }

    /// A request to run a kernel. The first two fields are written last, as one word.
    KernelDispatchPacket = hsa_kernel_dispatch_packet_t {
        header: u16,
        setup: u16,
        workgroup_size_x: u16,
        workgroup_size_y: u16,
        workgroup_size_z: u16,
        reserved0: u16,
        grid_size_x: u32,
        grid_size_y: u32,
        grid_size_z: u32,
        private_segment_size: u32,
        group_segment_size: u32,
        kernel_object: u64,
        kernarg_address: *mut c_void,
        reserved2: u64,
        completion_signal: Signal,
    }

    /// Where a kernel went wrong.
    MemoryFault = hsa_amd_gpu_memory_fault_info_t {
        agent: Agent,
        virtual_address: u64,
        fault_reason_mask: u32,
    }

    /// Something that has happened. It is about memory where the type says so.
    Event = hsa_amd_event_t {
        event_type: EventType,
        memory_fault: MemoryFault,
    }

    /// What a signal's handle points to. Device code knows it, so it cannot change.
    SignalBlock = amd_signal_t {
        kind: i64,
        value: i64,
        event_mailbox_ptr: u64,
        event_id: u32,
        reserved1: u32,
        start_ts: u64,
        end_ts: u64,
        reserved2: u64,
        reserved3: [u32; 2],
    }
}

names! {
    Status = "hsa_status_t": u32;
    EventType = "hsa_amd_event_type_t": u32;
    SystemInfo = "hsa_system_info_t": u32;
    AgentInfo = "hsa_agent_info_t": u32;
    IsaInfo = "hsa_isa_info_t": u32;
    PoolInfo = "hsa_amd_memory_pool_info_t": u32;
    AgentPoolInfo = "hsa_amd_agent_memory_pool_info_t": u32;
    Profile = "hsa_profile_t": u32;
    RoundingMode = "hsa_default_float_rounding_mode_t": u32;
    SymbolInfo = "hsa_executable_symbol_info_t": u32;
    QueueType = "hsa_queue_type32_t": u32;
    SignalValue = "hsa_signal_value_t": i64;
    Condition = "hsa_signal_condition_t": u32;
    WaitState = "hsa_wait_state_t": u32;
    AgentCallback = "hsa_status_t (*)(hsa_agent_t, void *)":
        unsafe extern "C" fn(Agent, *mut c_void) -> Status;
    IsaCallback = "hsa_status_t (*)(hsa_isa_t, void *)":
        unsafe extern "C" fn(Isa, *mut c_void) -> Status;
    PoolCallback = "hsa_status_t (*)(hsa_amd_memory_pool_t, void *)":
        unsafe extern "C" fn(MemoryPool, *mut c_void) -> Status;
    QueueCallback = "void (*)(hsa_status_t, hsa_queue_t *, void *)":
        unsafe extern "C" fn(Status, *mut RawQueue, *mut c_void);
    SystemEventCallback = "hsa_status_t (*)(const hsa_amd_event_t *, void *)":
        unsafe extern "C" fn(*const Event, *mut c_void) -> Status;
}

/// An attribute of newer runtimes (ROCm 5.5 and later). The header that the test compares with has not got it.
pub(super) const HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY: AgentInfo = 0xA016;

constants! {
    HSA_STATUS_SUCCESS: Status = 0;
    HSA_STATUS_ERROR: Status = 0x1000;
    HSA_STATUS_ERROR_INVALID_ALLOCATION: Status = 0x1003;
    HSA_STATUS_ERROR_OUT_OF_RESOURCES: Status = 0x1008;
    HSA_STATUS_ERROR_INVALID_SYMBOL_NAME: Status = 0x1013;
    HSA_STATUS_ERROR_MEMORY_FAULT: Status = 43;
    HSA_AMD_GPU_MEMORY_FAULT_EVENT: EventType = 0;

    HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY: SystemInfo = 3;

    HSA_AGENT_INFO_NAME: AgentInfo = 0;
    HSA_AGENT_INFO_WAVEFRONT_SIZE: AgentInfo = 6;
    HSA_AGENT_INFO_QUEUE_MIN_SIZE: AgentInfo = 13;
    HSA_AGENT_INFO_QUEUE_MAX_SIZE: AgentInfo = 14;
    HSA_AGENT_INFO_DEVICE: AgentInfo = 17;
    HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT: AgentInfo = 0xA002;
    HSA_AMD_AGENT_INFO_PRODUCT_NAME: AgentInfo = 0xA009;
    HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU: AgentInfo = 0xA00A;
    HSA_DEVICE_TYPE_CPU: u32 = 0;
    HSA_DEVICE_TYPE_GPU: u32 = 1;

    HSA_ISA_INFO_NAME_LENGTH: IsaInfo = 0;
    HSA_ISA_INFO_NAME: IsaInfo = 1;

    HSA_AMD_MEMORY_POOL_INFO_SEGMENT: PoolInfo = 0;
    HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: PoolInfo = 1;
    HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED: PoolInfo = 5;
    HSA_AMD_SEGMENT_GLOBAL: u32 = 0;
    HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT: u32 = 1;
    HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED: u32 = 2;
    HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED: u32 = 4;
    HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS: AgentPoolInfo = 0;
    HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED: u32 = 0;

    HSA_PROFILE_FULL: Profile = 1;
    HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT: RoundingMode = 0;
    HSA_EXECUTABLE_SYMBOL_INFO_TYPE: SymbolInfo = 0;
    HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE: SymbolInfo = 9;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE: SymbolInfo = 11;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT: SymbolInfo = 12;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE: SymbolInfo = 13;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE: SymbolInfo = 14;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_DYNAMIC_CALLSTACK: SymbolInfo = 15;
    HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS: SymbolInfo = 21;
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT: SymbolInfo = 22;
    HSA_SYMBOL_KIND_VARIABLE: u32 = 0;
    HSA_SYMBOL_KIND_KERNEL: u32 = 1;

    HSA_QUEUE_TYPE_MULTI: QueueType = 0;
    HSA_PACKET_TYPE_KERNEL_DISPATCH: u16 = 2;
    HSA_PACKET_HEADER_TYPE: u16 = 0;
    HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE: u16 = 9;
    HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE: u16 = 11;
    HSA_FENCE_SCOPE_SYSTEM: u16 = 2;
    HSA_KERNEL_DISPATCH_PACKET_SETUP_DIMENSIONS: u16 = 0;

    HSA_SIGNAL_CONDITION_NE: Condition = 1;
    HSA_SIGNAL_CONDITION_LT: Condition = 2;
    HSA_WAIT_STATE_BLOCKED: WaitState = 0;
    AMD_SIGNAL_KIND_USER: i64 = 1;
}

functions! {
    fn hsa_init() -> Status;
    fn hsa_shut_down() -> Status;
    fn hsa_status_string(status: Status, text: *mut *const c_char) -> Status;
    fn hsa_amd_register_system_event_handler(
        callback: SystemEventCallback, data: *mut c_void
    ) -> Status;
    fn hsa_system_get_info(attribute: SystemInfo, value: *mut c_void) -> Status;

    fn hsa_iterate_agents(callback: AgentCallback, data: *mut c_void) -> Status;
    fn hsa_agent_get_info(agent: Agent, attribute: AgentInfo, value: *mut c_void) -> Status;
    fn hsa_agent_iterate_isas(agent: Agent, callback: IsaCallback, data: *mut c_void) -> Status;
    fn hsa_isa_get_info_alt(isa: Isa, attribute: IsaInfo, value: *mut c_void) -> Status;

    fn hsa_amd_agent_iterate_memory_pools(
        agent: Agent, callback: PoolCallback, data: *mut c_void
    ) -> Status;
    fn hsa_amd_memory_pool_get_info(
        pool: MemoryPool, attribute: PoolInfo, value: *mut c_void
    ) -> Status;
    fn hsa_amd_agent_memory_pool_get_info(
        agent: Agent, pool: MemoryPool, attribute: AgentPoolInfo, value: *mut c_void
    ) -> Status;
    fn hsa_amd_memory_pool_allocate(
        pool: MemoryPool, size: usize, flags: u32, address: *mut *mut c_void
    ) -> Status;
    fn hsa_amd_memory_pool_free(address: *mut c_void) -> Status;
    fn hsa_amd_agents_allow_access(
        count: u32, agents: *const Agent, flags: *const u32, address: *const c_void
    ) -> Status;
    fn hsa_memory_copy(to: *mut c_void, from: *const c_void, size: usize) -> Status;

    fn hsa_code_object_reader_create_from_memory(
        code_object: *const c_void, size: usize, reader: *mut CodeObjectReader
    ) -> Status;
    fn hsa_code_object_reader_destroy(reader: CodeObjectReader) -> Status;
    fn hsa_executable_create_alt(
        profile: Profile, rounding: RoundingMode, options: *const c_char,
        executable: *mut RawExecutable
    ) -> Status;
    fn hsa_executable_destroy(executable: RawExecutable) -> Status;
    fn hsa_executable_load_agent_code_object(
        executable: RawExecutable, agent: Agent, reader: CodeObjectReader,
        options: *const c_char, loaded: *mut LoadedCodeObject
    ) -> Status;
    fn hsa_executable_freeze(executable: RawExecutable, options: *const c_char) -> Status;
    fn hsa_executable_get_symbol_by_name(
        executable: RawExecutable, name: *const c_char, agent: *const Agent,
        symbol: *mut Symbol
    ) -> Status;
    fn hsa_executable_symbol_get_info(
        symbol: Symbol, attribute: SymbolInfo, value: *mut c_void
    ) -> Status;

    fn hsa_queue_create(
        agent: Agent, size: u32, kind: QueueType, callback: QueueCallback, data: *mut c_void,
        private_segment_size: u32, group_segment_size: u32, queue: *mut *mut RawQueue
    ) -> Status;
    fn hsa_queue_destroy(queue: *mut RawQueue) -> Status;
    fn hsa_queue_load_read_index_scacquire(queue: *const RawQueue) -> u64;
    fn hsa_queue_load_write_index_relaxed(queue: *const RawQueue) -> u64;
    fn hsa_queue_add_write_index_scacq_screl(queue: *const RawQueue, value: u64) -> u64;

    fn hsa_signal_create(
        initial: SignalValue, count: u32, consumers: *const Agent, signal: *mut Signal
    ) -> Status;
    fn hsa_signal_destroy(signal: Signal) -> Status;
    fn hsa_signal_store_screlease(signal: Signal, value: SignalValue);
    fn hsa_signal_add_screlease(signal: Signal, value: SignalValue);
    fn hsa_signal_wait_scacquire(
        signal: Signal, condition: Condition, value: SignalValue, timeout: u64, state: WaitState
    ) -> SignalValue;
}

/// Why the functions cannot be had.
#[derive(Clone, Debug)]
pub(super) enum LoadError {
    /// There is no such library: the dynamic linker's words.
    Library(String),
    /// The library has not this function.
    Function(&'static str),
}

impl Functions {
    /// From the library of that file name, looked for where the dynamic linker looks.
    pub(super) fn load(file: &std::ffi::OsStr) -> Result<Self, LoadError> {
        // SAFETY: the runtime's library is made to be loaded by any program; its initialisers ask
        // nothing of the caller.
        let library = unsafe { Library::new(file) };
        let library = library.map_err(|error| {
            LoadError::Library(
                error.source().map_or_else(|| error.to_string(), ToString::to_string),
            )
        })?;
        Functions::of(library)
    }
}
