//! What an AMD code object says of itself: its target, and its kernels with their arguments.
//!
//! The notes hold it as MessagePack, in the form of code object version 4 and later ("User Guide for AMDGPU
//! Backend" of LLVM, "Code Object Metadata").

use object::elf;
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, SectionHeader};
use rmpv::{Value, decode::read_value_with_max_depth};

type Header = elf::FileHeader64<LittleEndian>;

/// The type of the note, whose name is `AMDGPU`.
const METADATA: u32 = 32;

/// A map in a list in a map, and some.
const DEPTH: usize = 16;

/// The metadata of a code object. Its offsets and sizes have been checked.
#[derive(Debug)]
pub(super) struct CodeObject {
    /// As `amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-`: features that are not named may be on or off.
    pub(super) target: String,
    kernels: Vec<KernelInfo>,
}

/// What is known of a kernel.
#[derive(Clone, Debug)]
pub(super) struct KernelInfo {
    symbol: String,
    /// Lanes of the wave that it was compiled for.
    pub(super) lanes: u32,
    /// The most work-items of a group.
    pub(super) most_threads: u32,
    size: usize,
    arguments: Vec<Argument>,
}

#[derive(Clone, Debug)]
struct Argument {
    offset: usize,
    size: usize,
    kind: Kind,
}

/// Where an argument's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Explicit,
    /// The number of groups, and their size, in a direction.
    Blocks(usize),
    Threads(usize),
    Dimensions,
    /// Something that a program without a language runtime does without. Left zero.
    Nothing,
}

impl Kind {
    fn new(name: &str) -> Self {
        let Some(hidden) = name.strip_prefix("hidden_") else {
            return Kind::Explicit;
        };
        let axis = |prefix| {
            let axis = hidden.strip_prefix(prefix)?;
            ["_x", "_y", "_z"].iter().position(|&name| name == axis)
        };
        match (axis("block_count"), axis("group_size")) {
            (Some(axis), _) => Kind::Blocks(axis),
            (_, Some(axis)) => Kind::Threads(axis),
            _ if hidden == "grid_dims" => Kind::Dimensions,
            _ => Kind::Nothing,
        }
    }
}

impl CodeObject {
    /// Reads the metadata; the error says what is wrong with it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let note = note(bytes).map_err(|error| error.to_string())?.ok_or("it has none")?;
        let value = read_value_with_max_depth(&mut &note[..], DEPTH);
        let map = value.map_err(|_| "no MessagePack")?;
        let target = field(&map, "amdhsa.target").and_then(Value::as_str);
        let target =
            target.ok_or("it names no target, as before code object version 4")?.to_owned();
        let kernels = field(&map, "amdhsa.kernels").and_then(Value::as_array);
        let kernels = kernels.ok_or("it has no list of kernels")?.iter().map(KernelInfo::read);
        Ok(CodeObject { target, kernels: kernels.collect::<Result<_, _>>()? })
    }

    /// The kernel of that name, without the `.kd` of its descriptor.
    pub(super) fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|kernel| kernel.symbol.strip_suffix(".kd") == Some(name))
    }

    /// Whether a device that runs this instruction set runs the code.
    pub(super) fn runs_on(&self, isa: &str) -> bool {
        if system(&self.target) != system(isa) {
            return false;
        }
        let (mut wanted, mut there) = (self.processor().split(':'), processor(isa).split(':'));
        let same = wanted.next() == there.next();
        let features: Vec<_> = there.collect();
        same && wanted.all(|feature| features.contains(&feature))
    }

    /// The processor, as `gfx90a`, with its features.
    pub(super) fn processor(&self) -> &str {
        processor(&self.target)
    }
}

/// Of `amdgcn-amd-amdhsa--gfx90a:xnack-`: what comes after the four parts of the triple, of which compilers
/// fill in the vendor and the environment, or not.
pub(super) fn processor(target: &str) -> &str {
    target.splitn(5, '-').nth(4).unwrap_or(target)
}

/// Architecture and operating system of a target.
fn system(target: &str) -> (Option<&str>, Option<&str>) {
    let mut parts = target.split('-');
    (parts.next(), parts.nth(1))
}

/// The contents of the first note with metadata.
fn note(bytes: &[u8]) -> Result<Option<Vec<u8>>, object::read::Error> {
    let header = Header::parse(bytes)?;
    let endian = header.endian()?;
    for section in header.sections(endian, bytes)?.iter() {
        let Some(mut notes) = section.notes(endian, bytes)? else { continue };
        while let Some(note) = notes.next()? {
            if note.n_type(endian).0 == METADATA && note.name() == b"AMDGPU" {
                return Ok(Some(note.desc().to_vec()));
            }
        }
    }
    Ok(None)
}

fn field<'v>(map: &'v Value, name: &str) -> Option<&'v Value> {
    let (_, value) = map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name))?;
    Some(value)
}

fn number(map: &Value, name: &str) -> Result<u32, String> {
    let number = field(map, name).and_then(Value::as_u64).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("it has no number {name}"))
}

impl KernelInfo {
    fn read(map: &Value) -> Result<Self, String> {
        let symbol =
            field(map, ".symbol").and_then(Value::as_str).ok_or("a kernel has no symbol")?;
        let of = |error: String| format!("{symbol}: {error}");
        let size = number(map, ".kernarg_segment_size").map_err(of)? as usize;
        let lanes = number(map, ".wavefront_size").map_err(of)?;
        if ![32, 64].contains(&lanes) {
            return Err(format!("{symbol}: waves of {lanes} lanes"));
        }
        let mut arguments = Vec::new();
        for map in field(map, ".args").and_then(Value::as_array).into_iter().flatten() {
            let kind = field(map, ".value_kind").and_then(Value::as_str);
            let kind = kind.ok_or_else(|| format!("{symbol}: an argument of no kind"))?;
            let (offset, bytes) =
                (number(map, ".offset").map_err(of)?, number(map, ".size").map_err(of)?);
            let (offset, bytes, kind) = (offset as usize, bytes as usize, Kind::new(kind));
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= size);
            if !fits {
                let text = format!("{symbol}: an argument of {bytes} bytes at {offset} of {size}");
                return Err(text);
            }
            arguments.push(Argument { offset, size: bytes, kind });
        }
        let most_threads = number(map, ".max_flat_workgroup_size").map_err(of)?;
        Ok(KernelInfo { symbol: symbol.to_owned(), lanes, most_threads, size, arguments })
    }

    /// An argument that a loader has no value for: it gives numbers and addresses.
    pub(super) fn unfillable(&self) -> Option<String> {
        let mut arguments = self.arguments.iter();
        let large = arguments.find(|a| a.kind != Kind::Nothing && a.size > 8)?;
        Some(format!("{}: an argument of {} bytes", self.symbol, large.size))
    }

    /// How many arguments the program's source gives it.
    pub(super) fn parameters(&self) -> usize {
        self.arguments.iter().filter(|argument| argument.kind == Kind::Explicit).count()
    }

    /// The segment with its arguments: as many of `values` as it has, and what the compiler adds for a launch
    /// of this size.
    pub(super) fn kernarg(&self, values: &[u64], blocks: [u32; 3], threads: [u32; 3]) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        let mut values = values.iter();
        for &Argument { offset, size, kind } in &self.arguments {
            let value = match kind {
                Kind::Explicit => values.next().copied().unwrap_or(0),
                Kind::Blocks(axis) => blocks[axis].into(),
                Kind::Threads(axis) => threads[axis].into(),
                Kind::Dimensions => 3,
                Kind::Nothing => continue,
            };
            let size = size.min(8);
            bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: Vec<(&str, Value)>) -> Value {
        Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    fn argument(offset: u64, size: u64, kind: &str) -> Value {
        map(vec![(".offset", offset.into()), (".size", size.into()), (".value_kind", kind.into())])
    }

    fn kernel(lanes: u64, arguments: Vec<Value>) -> Result<KernelInfo, String> {
        KernelInfo::read(&map(vec![
            (".symbol", "_start.kd".into()),
            (".kernarg_segment_size", 64.into()),
            (".wavefront_size", lanes.into()),
            (".max_flat_workgroup_size", 1024.into()),
            (".args", Value::Array(arguments)),
        ]))
    }

    #[test]
    fn arguments_stand_where_the_metadata_says() {
        let kernel = kernel(
            32,
            vec![
                argument(0, 4, "by_value"),
                argument(8, 8, "global_buffer"),
                argument(16, 4, "hidden_block_count_x"),
                argument(20, 4, "hidden_block_count_z"),
                argument(24, 2, "hidden_group_size_y"),
                argument(26, 2, "hidden_grid_dims"),
                argument(28, 2, "hidden_remainder_x"),
                argument(32, 8, "hidden_heap_v1"),
            ],
        )
        .unwrap();
        assert_eq!((kernel.parameters(), kernel.lanes), (2, 32));
        let bytes = kernel.kernarg(&[u64::MAX, 0x1122_3344_5566_7788, 9], [7, 1, 5], [64, 3, 1]);
        let mut wanted = vec![0xff; 4];
        wanted.extend([0; 4]);
        wanted.extend(0x1122_3344_5566_7788u64.to_le_bytes());
        wanted.extend([7, 0, 0, 0, 5, 0, 0, 0, 3, 0, 3, 0]);
        wanted.resize(64, 0);
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn arguments_outside_their_segment_are_refused() {
        for (offset, size) in [(60, 8), (u32::MAX.into(), 8), (56, 16)] {
            let error = kernel(64, vec![argument(offset, size, "by_value")]).unwrap_err();
            assert!(error.contains("an argument of"), "{error}");
        }
        let unfillable = |size| {
            let arguments = vec![argument(0, size, "by_value"), argument(32, 16, "hidden_none")];
            kernel(64, arguments).unwrap().unfillable()
        };
        assert_eq!(unfillable(8), None);
        assert_eq!(unfillable(16).as_deref(), Some("_start.kd: an argument of 16 bytes"));
        assert!(kernel(48, vec![]).unwrap_err().contains("48 lanes"));
        assert!(kernel(64, vec![map(vec![])]).unwrap_err().contains("no kind"));
    }

    #[test]
    fn a_device_must_have_the_features_that_are_named() {
        let runs = |target: &str, isa: &str| {
            let target = format!("amdgcn-amd-amdhsa--{target}");
            CodeObject { target, kernels: Vec::new() }.runs_on(&format!("amdgcn-amd-amdhsa--{isa}"))
        };
        let device = "gfx90a:sramecc+:xnack-";
        assert!(runs("gfx90a", device) && runs("gfx90a:xnack-", device) && runs(device, device));
        assert!(
            !runs("gfx90a:xnack+", device) && !runs("gfx90", device) && !runs("gfx906", device)
        );
        assert!(runs("gfx1100", "gfx1100") && !runs("gfx1100", device));
        assert!(runs("gfx9-generic", "gfx9-generic") && !runs("gfx9-generic", "gfx9"));
    }

    #[test]
    fn the_triple_of_a_target_may_be_written_in_full() {
        let object = |target: &str| CodeObject { target: target.to_owned(), kernels: Vec::new() };
        let isa = "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-";
        for triple in ["amdgcn-amd-amdhsa-", "amdgcn-amd-amdhsa-unknown", "amdgcn-unknown-amdhsa-"]
        {
            let object = object(&format!("{triple}-gfx90a:xnack-"));
            assert!(object.runs_on(isa), "{triple}");
            assert_eq!(object.processor(), "gfx90a:xnack-");
        }
        for other in ["amdgcn-amd-amdpal--gfx90a", "r600-amd-amdhsa--gfx90a", "gfx90a", ""] {
            assert!(!object(other).runs_on(isa), "{other}");
        }
    }
}
