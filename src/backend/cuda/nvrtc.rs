//! CUDA's run-time compiler, loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::driver::linker_says;

/// Why a kernel's source was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The compiler's library is not on this machine.
    #[error(
        "CUDA's run-time compiler cannot be loaded ({reason}): install the CUDA toolkit, or put the \
         folder with libnvrtc.so on LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// Why not, as the dynamic linker says it.
        reason: String,
    },
    /// The compiler found mistakes.
    #[error("the kernel does not compile ({reason}):\n{log}")]
    Source {
        /// The compiler's word for what happened.
        reason: String,
        /// What it printed.
        log: String,
    },
    /// A source, an option or a header's name has a NUL in it.
    #[error("a NUL byte in the source or in an option")]
    Nul(#[from] std::ffi::NulError),
}

type Program = *mut c_void;

/// The compiler's functions, with the types that its header gives them.
struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    reason: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: Library,
}

/// Compiles CUDA C++ to PTX. Each of `headers` is a name and a text that the source may include.
pub(crate) fn compile(
    source: &str,
    headers: &[(&str, &str)],
    options: &[&str],
) -> Result<String, CompileError> {
    let nvrtc = Nvrtc::get()?;
    let strings = |texts: &mut dyn Iterator<Item = &str>| {
        texts.map(CString::new).collect::<Result<Vec<_>, _>>()
    };
    let source = CString::new(source)?;
    let names = strings(&mut headers.iter().map(|(name, _)| *name))?;
    let texts = strings(&mut headers.iter().map(|(_, text)| *text))?;
    let options = strings(&mut options.iter().copied())?;
    let program = nvrtc.program(&source, &names, &texts)?;
    program.compile(&options)?;
    program.ptx()
}

impl Nvrtc {
    fn get() -> Result<&'static Self, CompileError> {
        static NVRTC: OnceLock<Result<Nvrtc, CompileError>> = OnceLock::new();
        NVRTC.get_or_init(Self::load).as_ref().map_err(CompileError::clone)
    }

    fn load() -> Result<Self, CompileError> {
        let names: &[&str] = if cfg!(windows) {
            &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
        } else {
            &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]
        };
        let mut reason = String::new();
        for &name in names {
            // SAFETY: the compiler's library is made to be loaded by any program.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    return Self::of(library)
                        .map_err(|error| CompileError::NoCompiler { reason: linker_says(&error) });
                }
                // The first name is the one that people know.
                Err(error) if reason.is_empty() => reason = linker_says(&error),
                Err(_) => {}
            }
        }
        Err(CompileError::NoCompiler { reason })
    }

    fn of(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: the fields have the types of the functions of these names, which have been the
        // same in all releases; the library stays loaded with them.
        unsafe {
            Ok(Nvrtc {
                create: *library.get("nvrtcCreateProgram")?,
                destroy: *library.get("nvrtcDestroyProgram")?,
                compile: *library.get("nvrtcCompileProgram")?,
                ptx_size: *library.get("nvrtcGetPTXSize")?,
                ptx: *library.get("nvrtcGetPTX")?,
                log_size: *library.get("nvrtcGetProgramLogSize")?,
                log: *library.get("nvrtcGetProgramLog")?,
                reason: *library.get("nvrtcGetErrorString")?,
                _library: library,
            })
        }
    }

    /// What a result means.
    fn reason(&self, result: c_int) -> String {
        // SAFETY: the function takes any number and returns a constant text or null.
        let text = unsafe { (self.reason)(result) };
        if text.is_null() {
            return result.to_string();
        }
        // SAFETY: not null, so a C string of the library's, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, result: c_int, log: impl FnOnce() -> String) -> Result<(), CompileError> {
        if result == 0 {
            return Ok(());
        }
        Err(CompileError::Source { reason: self.reason(result), log: log() })
    }

    fn program(
        &self,
        source: &CStr,
        names: &[CString],
        texts: &[CString],
    ) -> Result<Source<'_>, CompileError> {
        let mut raw = std::ptr::null_mut();
        let (names, texts) = (pointers(names), pointers(texts));
        // SAFETY: the texts are C strings that live over the call, which copies them; both arrays
        // have as many as is said; `raw` is a place for the handle.
        let result = unsafe {
            (self.create)(
                &raw mut raw,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                names.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(result, String::new)?;
        Ok(Source { nvrtc: self, raw })
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// A source in the compiler's hands.
struct Source<'n> {
    nvrtc: &'n Nvrtc,
    raw: Program,
}

impl Source<'_> {
    fn compile(&self, options: &[CString]) -> Result<(), CompileError> {
        let options = pointers(options);
        // SAFETY: the program lives; the array has as many C strings as is said.
        let result =
            unsafe { (self.nvrtc.compile)(self.raw, options.len() as c_int, options.as_ptr()) };
        self.nvrtc
            .check(result, || self.text(self.nvrtc.log_size, self.nvrtc.log).unwrap_or_default())
    }

    fn ptx(&self) -> Result<String, CompileError> {
        self.text(self.nvrtc.ptx_size, self.nvrtc.ptx)
    }

    /// A text that the compiler has, by the functions that tell its size and copy it.
    fn text(
        &self,
        size_of: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        copy: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<String, CompileError> {
        let mut size = 0;
        // SAFETY: the program lives; `size` is a place for the number.
        self.nvrtc.check(unsafe { size_of(self.raw, &raw mut size) }, String::new)?;
        let mut text = vec![0u8; size];
        // SAFETY: as above; the text has the size that was asked for.
        let result = unsafe { copy(self.raw, text.as_mut_ptr().cast()) };
        self.nvrtc.check(result, String::new)?;
        while text.last() == Some(&0) {
            text.pop();
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `program`, destroyed once. There is nothing to do about a failure.
        unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
    }
}
