//! GPU images: what a file is, checked before a driver sees it.

use std::fs;
use std::io;
use std::path::Path;

use object::elf;
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

use super::ptx;

type Header = elf::FileHeader64<LittleEndian>;

/// Why a file is not an image that can be run here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be read.
    #[error("cannot be read ({error}): {}", advice(.error))]
    Read {
        /// Why not.
        error: io::Error,
    },
    /// Neither ELF nor PTX.
    #[error("not a GPU image: it is neither PTX text nor an ELF file; {hint}")]
    Unknown {
        /// What it looks like, and what to do.
        hint: &'static str,
    },
    /// An ELF file of a machine that is no GPU.
    #[error(
        "not a GPU image: an ELF file for {machine} (machine {number}); compile it with \
         --target=nvptx64-nvidia-cuda or amdgcn-amd-amdhsa"
    )]
    OtherMachine {
        /// The machine's name.
        machine: &'static str,
        /// The machine's number.
        number: u16,
    },
    /// A GPU's object file that has not been linked.
    #[error("an object file for {gpus} that has not been linked: link it with {linker}")]
    NotLinked {
        /// What it is for.
        gpus: &'static str,
        /// What links it.
        linker: &'static str,
    },
    /// A damaged ELF file.
    #[error("a damaged ELF file ({0}): was it cut off on the way?")]
    Damaged(String),
    /// A code object whose metadata cannot be used.
    #[error(
        "its metadata cannot be used ({0}): compile it with clang, -mcode-object-version=5 or 6, and \
         link it with ld.lld"
    )]
    BadMetadata(String),
    /// Damaged PTX.
    #[error("damaged PTX text: {0}")]
    BadPtx(&'static str),
}

/// What to do about a file that cannot be read.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "is the path right, and the program built?",
        io::ErrorKind::IsADirectory => "give the image in that folder",
        io::ErrorKind::PermissionDenied => "may this user read it?",
        _ => "look at the file",
    }
}

/// What an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageKind {
    /// Machine code of NVIDIA GPUs of one architecture.
    Cubin,
    /// Text that the driver compiles for the GPU it has.
    Ptx,
    /// Machine code of AMD GPUs of one architecture.
    CodeObject,
}

/// A GPU image whose structure has been checked: everything that its headers point to lies within
/// the file.
#[derive(Clone, Debug)]
pub struct Image {
    bytes: Vec<u8>,
    kind: ImageKind,
    symbols: Vec<String>,
}

impl Image {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn read(path: &Path) -> Result<Self, ImageError> {
        Self::parse(fs::read(path).map_err(|error| ImageError::Read { error })?)
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn parse(mut bytes: Vec<u8>) -> Result<Self, ImageError> {
        if bytes.starts_with(b"\x7fELF") {
            let (kind, symbols) = check_elf(&bytes)?;
            return Ok(Image { bytes, kind, symbols });
        }
        if let Some(hint) = other_format(&bytes) {
            return Err(ImageError::Unknown { hint });
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        let text = str::from_utf8(&bytes).ok().filter(|text| ptx::is_ptx(text));
        let Some(text) = text else {
            let hint = "give it what clang or nvcc made for the GPU";
            return Err(ImageError::Unknown { hint });
        };
        if text.contains('\0') {
            return Err(ImageError::BadPtx("a NUL byte in its midst"));
        }
        if !text.contains(".target") {
            return Err(ImageError::BadPtx("no .target; was it cut off on the way?"));
        }
        let symbols = ptx::names(text);
        // The driver reads to the NUL.
        bytes.push(0);
        Ok(Image { bytes, kind: ImageKind::Ptx, symbols })
    }

    /// What it is.
    pub fn kind(&self) -> ImageKind {
        self.kind
    }

    /// The bytes for the driver; PTX ends with a NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The names of all variables and functions.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// How many parameters a kernel has, where the image tells, which PTX does.
    pub fn parameters(&self, kernel: &str) -> Option<usize> {
        match self.kind {
            ImageKind::Ptx => ptx::parameters(str::from_utf8(&self.bytes).ok()?, kernel),
            ImageKind::Cubin | ImageKind::CodeObject => None,
        }
    }
}

/// What people take for a GPU image by mistake.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [] => "the file is empty: did what made it fail?",
        [b'B', b'C', 0xc0, 0xde, ..] => "it is LLVM bitcode: compile it with clang -S or llc",
        [0x50, 0xed, 0x55, 0xba, ..] => {
            "it is a fat binary: take the cubin out with cuobjdump -xelf all"
        }
        [b'!', b'<', b'a', b'r', b'c', b'h', b'>', ..] => "it is an archive: link it first",
        [b'#', b'!', ..] => "it is a script: give the image that it runs",
        _ => return None,
    })
}

/// Checks that all parts of an ELF file lie within it, and returns its symbols' names.
fn check_elf(bytes: &[u8]) -> Result<(ImageKind, Vec<String>), ImageError> {
    let damaged = |error: object::read::Error| ImageError::Damaged(error.to_string());
    // Class and byte order are the first two after the magic.
    if bytes.len() >= 6 && bytes[4..6] != [elf::ELFCLASS64.0, elf::ELFDATA2LSB.0] {
        return Err(ImageError::OtherMachine {
            machine: "a 32-bit or big-endian machine",
            number: match bytes.get(5..20) {
                Some(&[2, .., high, low]) => u16::from_be_bytes([high, low]),
                Some(&[.., low, high]) => u16::from_le_bytes([low, high]),
                _ => 0,
            },
        });
    }
    let header = Header::parse(bytes).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let (kind, table) = match header.e_machine(endian) {
        elf::EM_CUDA => (ImageKind::Cubin, elf::SHT_SYMTAB),
        elf::EM_AMDGPU => (ImageKind::CodeObject, elf::SHT_DYNSYM),
        number => {
            return Err(ImageError::OtherMachine { machine: machine(number), number: number.0 });
        }
    };
    if header.e_type(endian) == elf::ET_REL {
        return Err(match kind {
            ImageKind::CodeObject => ImageError::NotLinked { gpus: "AMD GPUs", linker: "ld.lld" },
            _ => ImageError::NotLinked {
                gpus: "NVIDIA GPUs",
                linker: "nvlink or clang-nvlink-wrapper",
            },
        });
    }
    for segment in header.program_headers(endian, bytes).map_err(damaged)? {
        if segment.data(endian, bytes).is_err() {
            return Err(ImageError::Damaged("a segment ends behind the file".to_owned()));
        }
    }
    let sections = header.sections(endian, bytes).map_err(damaged)?;
    if sections.is_empty() {
        return Err(ImageError::Damaged("no sections".to_owned()));
    }
    for section in sections.iter() {
        section.data(endian, bytes).map_err(damaged)?;
        sections.section_name(endian, section).map_err(damaged)?;
    }
    let symbols = sections.symbols(endian, bytes, table).map_err(damaged)?;
    let names = symbols.iter().map(|symbol| {
        let name = symbol.name(endian, symbols.strings()).map_err(damaged)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    });
    let names = names.filter(|name| !name.as_ref().is_ok_and(String::is_empty));
    Ok((kind, names.collect::<Result<_, _>>()?))
}

fn machine(number: elf::Machine) -> &'static str {
    match number {
        elf::EM_X86_64 => "x86-64 processors",
        elf::EM_AARCH64 => "64-bit Arm processors",
        elf::EM_RISCV => "RISC-V processors",
        elf::EM_PPC64 => "POWER processors",
        elf::EM_386 => "32-bit x86 processors",
        _ => "another machine",
    }
}
