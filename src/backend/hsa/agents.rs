//! Which devices there are, and which memory each has.

use std::ffi::c_void;
use std::sync::Arc;

use super::HsaError;
use super::ffi::{
    Agent, AgentInfo, HSA_AGENT_INFO_DEVICE, HSA_AGENT_INFO_NAME, HSA_AGENT_INFO_WAVEFRONT_SIZE,
    HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT, HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU,
    HSA_AMD_AGENT_INFO_PRODUCT_NAME, HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY,
    HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED,
    HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED,
    HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS,
    HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, HSA_AMD_MEMORY_POOL_INFO_SEGMENT,
    HSA_AMD_SEGMENT_GLOBAL, HSA_DEVICE_TYPE_CPU, HSA_DEVICE_TYPE_GPU, HSA_ISA_INFO_NAME,
    HSA_ISA_INFO_NAME_LENGTH, HSA_STATUS_SUCCESS, Isa, IsaInfo, MemoryPool, PoolInfo, Status,
};
use super::runtime::Runtime;

/// A GPU, as the runtime describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuAgent {
    /// The product's name, or the architecture's where it has none.
    pub name: String,
    /// The instruction sets that it runs, the preferred one first, as
    /// `amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-`.
    pub isas: Vec<String>,
    /// Lanes of a wave as the device prefers them, 32 or 64. Code may be compiled for the other.
    pub wavefront_size: u32,
    /// How many waves the whole device can have at a time.
    pub max_waves: u32,
    /// Ticks in a second of the clock that device code reads, where the runtime tells.
    pub clock_hz: Option<u64>,
}

/// The agents of a machine by what they are, in the runtime's order.
#[derive(Debug)]
pub(super) struct Agents {
    pub(super) cpus: Vec<Agent>,
    pub(super) gpus: Vec<Agent>,
}

/// A kind of memory of an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) raw: MemoryPool,
    flags: u32,
}

impl Pool {
    pub(super) fn is_fine_grained(&self) -> bool {
        self.flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED != 0
    }

    pub(super) fn is_coarse_grained(&self) -> bool {
        self.flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED != 0
    }

    pub(super) fn is_for_arguments(&self) -> bool {
        self.flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT != 0
    }
}

/// The callback of every iteration: keeps what it is shown.
///
/// # Safety
/// `data` points to a `Vec<T>` that nobody else uses meanwhile.
unsafe extern "C" fn keep<T>(item: T, data: *mut c_void) -> Status {
    // SAFETY: the caller's promise.
    unsafe { (*data.cast::<Vec<T>>()).push(item) };
    HSA_STATUS_SUCCESS
}

impl Runtime {
    pub(super) fn agents(&self) -> Result<Agents, HsaError> {
        let mut all = Vec::<Agent>::new();
        // SAFETY: `keep` gets the vector that it expects, for the time of the call.
        let status = unsafe { (self.hsa.hsa_iterate_agents)(keep::<Agent>, (&raw mut all).cast()) };
        self.check("hsa_iterate_agents", status)?;
        let mut agents = Agents { cpus: Vec::new(), gpus: Vec::new() };
        for agent in all {
            match self.number(agent, HSA_AGENT_INFO_DEVICE)? {
                HSA_DEVICE_TYPE_CPU => agents.cpus.push(agent),
                HSA_DEVICE_TYPE_GPU => agents.gpus.push(agent),
                _ => {}
            }
        }
        if agents.gpus.is_empty() { Err(HsaError::NoDevice) } else { Ok(agents) }
    }

    /// An attribute of an agent that is a 32-bit number.
    pub(super) fn number(&self, agent: Agent, attribute: AgentInfo) -> Result<u32, HsaError> {
        let mut number = 0u32;
        let value = (&raw mut number).cast();
        // SAFETY: the attributes asked for in this crate are of 32 bits, as the place for them; the
        // agent is one that the runtime named.
        let status = unsafe { (self.hsa.hsa_agent_get_info)(agent, attribute, value) };
        self.check("hsa_agent_get_info", status)?;
        Ok(number)
    }

    /// An attribute of an agent that is a name.
    fn name(&self, agent: Agent, attribute: AgentInfo) -> Result<String, HsaError> {
        let mut name = [0u8; 64];
        // SAFETY: both names are arrays of 64 characters in the runtime's interface.
        let status = unsafe {
            (self.hsa.hsa_agent_get_info)(agent, attribute, name.as_mut_ptr().cast::<c_void>())
        };
        self.check("hsa_agent_get_info", status)?;
        Ok(up_to_nul(&name))
    }

    pub(super) fn describe(&self, agent: Agent) -> Result<GpuAgent, HsaError> {
        let mut name = self.name(agent, HSA_AMD_AGENT_INFO_PRODUCT_NAME)?;
        if name.is_empty() {
            name = self.name(agent, HSA_AGENT_INFO_NAME)?;
        }
        let units = self.number(agent, HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT)?;
        let waves = self.number(agent, HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU)?;
        Ok(GpuAgent {
            name,
            isas: self.isas(agent)?,
            wavefront_size: self.number(agent, HSA_AGENT_INFO_WAVEFRONT_SIZE)?,
            max_waves: units.saturating_mul(waves),
            clock_hz: self.clock(agent),
        })
    }

    /// `None` from runtimes that do not know the attribute.
    fn clock(&self, agent: Agent) -> Option<u64> {
        let mut hertz = 0u64;
        let value = (&raw mut hertz).cast();
        // SAFETY: the attribute is of 64 bits, as the place for it; the agent is one that the runtime named.
        let status = unsafe {
            (self.hsa.hsa_agent_get_info)(agent, HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY, value)
        };
        (status == HSA_STATUS_SUCCESS && hertz > 0).then_some(hertz)
    }

    fn isas(&self, agent: Agent) -> Result<Vec<String>, HsaError> {
        let mut isas = Vec::<Isa>::new();
        let data = (&raw mut isas).cast();
        // SAFETY: `keep` gets the vector that it expects, for the time of the call.
        let status = unsafe { (self.hsa.hsa_agent_iterate_isas)(agent, keep::<Isa>, data) };
        self.check("hsa_agent_iterate_isas", status)?;
        isas.into_iter().map(|isa| self.isa_name(isa)).collect()
    }

    fn isa_name(&self, isa: Isa) -> Result<String, HsaError> {
        let info = |attribute: IsaInfo, value: *mut c_void| {
            // SAFETY: both callers give a place for what the attribute is.
            let status = unsafe { (self.hsa.hsa_isa_get_info_alt)(isa, attribute, value) };
            self.check("hsa_isa_get_info_alt", status)
        };
        let mut length = 0u32;
        info(HSA_ISA_INFO_NAME_LENGTH, (&raw mut length).cast())?;
        // Whether the length counts the NUL has changed: there is room for one more.
        let mut name = vec![0u8; length as usize + 1];
        info(HSA_ISA_INFO_NAME, name.as_mut_ptr().cast())?;
        Ok(up_to_nul(&name))
    }

    /// The pools of an agent that memory can be allocated from.
    pub(super) fn pools(&self, agent: Agent) -> Result<Vec<Pool>, HsaError> {
        let mut all = Vec::<MemoryPool>::new();
        let data = (&raw mut all).cast();
        // SAFETY: `keep` gets the vector that it expects, for the time of the call.
        let status = unsafe {
            (self.hsa.hsa_amd_agent_iterate_memory_pools)(agent, keep::<MemoryPool>, data)
        };
        self.check("hsa_amd_agent_iterate_memory_pools", status)?;
        let mut pools = Vec::new();
        for raw in all {
            let number = |attribute| self.pool_number(raw, attribute);
            if number(HSA_AMD_MEMORY_POOL_INFO_SEGMENT)? != HSA_AMD_SEGMENT_GLOBAL
                || !self.may_allocate(raw)?
            {
                continue;
            }
            pools.push(Pool { raw, flags: number(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS)? });
        }
        Ok(pools)
    }

    fn pool_number(&self, pool: MemoryPool, attribute: PoolInfo) -> Result<u32, HsaError> {
        let mut number = 0u32;
        let value = (&raw mut number).cast();
        // SAFETY: the attributes asked for are of 32 bits, as the place for them.
        let status = unsafe { (self.hsa.hsa_amd_memory_pool_get_info)(pool, attribute, value) };
        self.check("hsa_amd_memory_pool_get_info", status)?;
        Ok(number)
    }

    fn may_allocate(&self, pool: MemoryPool) -> Result<bool, HsaError> {
        // A C `bool`, whatever the runtime writes there.
        let mut allowed = 0u8;
        let value = (&raw mut allowed).cast();
        let attribute = HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED;
        // SAFETY: the attribute is one byte, as the place for it.
        let status = unsafe { (self.hsa.hsa_amd_memory_pool_get_info)(pool, attribute, value) };
        self.check("hsa_amd_memory_pool_get_info", status)?;
        Ok(allowed != 0)
    }

    /// Whether an agent can be given access to memory of the pool.
    pub(super) fn can_reach(&self, agent: Agent, pool: Pool) -> Result<bool, HsaError> {
        let mut access = 0u32;
        // SAFETY: the attribute is an enumeration of 32 bits, as the place for it.
        let status = unsafe {
            (self.hsa.hsa_amd_agent_memory_pool_get_info)(
                agent,
                pool.raw,
                HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS,
                (&raw mut access).cast::<c_void>(),
            )
        };
        self.check("hsa_amd_agent_memory_pool_get_info", status)?;
        Ok(access != HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED)
    }
}

fn up_to_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// An opened GPU with the memory that is used with it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) runtime: Arc<Runtime>,
    pub(super) agent: Agent,
    pub(super) cpu: Agent,
    pub(super) description: GpuAgent,
    /// Host memory that both sides see at once.
    pub(super) host: Pool,
    /// Host memory for the arguments of kernels.
    pub(super) arguments: Pool,
    /// Device memory that both sides see at once, where there is such a thing.
    pub(super) near: Option<Pool>,
    /// Device memory for the device.
    pub(super) coarse: Option<Pool>,
}

impl Device {
    pub(super) fn open(ordinal: usize) -> Result<Self, HsaError> {
        let runtime = Runtime::start()?;
        let agents = runtime.agents()?;
        let devices = agents.gpus.len();
        let &agent = agents.gpus.get(ordinal).ok_or(HsaError::NoSuchDevice { ordinal, devices })?;
        let description = runtime.describe(agent)?;
        let (cpu, host, arguments) = host_pools(&runtime, &agents.cpus)?;
        let pools = runtime.pools(agent)?;
        let mut near = None;
        for pool in pools.iter().filter(|pool| pool.is_fine_grained()) {
            if runtime.can_reach(cpu, *pool)? {
                near = Some(*pool);
                break;
            }
        }
        let coarse = pools.into_iter().find(Pool::is_coarse_grained);
        Ok(Device { runtime, agent, cpu, description, host, arguments, near, coarse })
    }
}

/// The first CPU that has fine-grained memory, and its pools: for flags and packets, for arguments.
fn host_pools(runtime: &Runtime, cpus: &[Agent]) -> Result<(Agent, Pool, Pool), HsaError> {
    for &cpu in cpus {
        let pools = runtime.pools(cpu)?;
        let fine = || pools.iter().filter(|pool| pool.is_fine_grained());
        let general = fine().find(|pool| !pool.is_for_arguments()).or_else(|| fine().next());
        if let Some(&general) = general {
            let arguments = fine().find(|pool| pool.is_for_arguments());
            return Ok((cpu, general, arguments.copied().unwrap_or(general)));
        }
    }
    Err(HsaError::NoPool { what: "fine-grained host memory" })
}
