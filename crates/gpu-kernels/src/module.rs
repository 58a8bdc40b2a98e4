//! Images on the device: loaded once, kept for the life of the device, asked for kernels by name.

#![expect(unsafe_code, reason = "calls into the driver with images that compilers made")]

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute};

use crate::cache::Cache;
use crate::compile::Program;
use crate::gpu::During;
use crate::{Error, Gpu, prebuilt};

/// A loaded image.
pub(crate) struct Module {
    handle: sys::CUmodule,
    file: &'static str,
}

/// A kernel of a loaded module, which it keeps loaded.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) function: sys::CUfunction,
    pub(crate) name: &'static str,
    _module: Arc<Module>,
}

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Its name.
    pub name: &'static str,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread that did not fit registers.
    pub local_bytes: u32,
}

// SAFETY: the handles are names for the driver, which may be used from any thread of the context.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is changed through them.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Gpu {
    /// The module of a program: loaded before, from the cache, prebuilt, or compiled.
    ///
    /// # Errors
    ///
    /// What the compiler refuses, [`Error::KernelsMissing`] without one, and what the driver refuses.
    pub(crate) fn module(&self, program: &Program) -> Result<Arc<Module>, Error> {
        let key = program.key(&self.facts().architecture());
        if let Some(module) = self.modules().get(&key) {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(self.loaded(program, &key)?);
        self.modules().insert(key, Arc::clone(&module));
        Ok(module)
    }

    /// What was made before, or else what the compiler makes now: a driver may be too old for the former.
    fn loaded(&self, program: &Program, key: &str) -> Result<Module, Error> {
        let compiler = self.device.compiler.version();
        let Some(image) = self.kept(program, key, compiler.as_deref().ok()) else {
            return Module::load(self, program, self.image(program, key)?);
        };
        Module::load(self, program, image).or_else(|refused| {
            let image =
                compiler.ok().and_then(|version| self.compiled(program, key, &version).ok());
            Module::load(self, program, image.ok_or(refused)?)
        })
    }

    /// The first of `choices` whose kernels keep all numbers in registers, or else the last that can
    /// be had. The first is compiled alone, since most often it is the one.
    ///
    /// # Errors
    ///
    /// Those of the first choice, if none can be had.
    pub(crate) fn best_module(&self, choices: &[Program]) -> Result<Arc<Module>, Error> {
        let (first, others) = choices.split_first().expect("a program has choices");
        let mut best = self.module(first)?;
        if best.fits_registers(self, first)? {
            return Ok(best);
        }
        self.compile_ahead(others);
        for program in others {
            let Ok(module) = self.module(program) else { continue };
            best = module;
            if best.fits_registers(self, program)? {
                break;
            }
        }
        Ok(best)
    }

    /// Compiles programs at once, where the first is not at hand. Failures are met again by whoever asks for
    /// the program.
    pub(crate) fn compile_ahead(&self, programs: &[Program]) {
        let [first, _, ..] = programs else { return };
        let (compiler, cache) = (&self.device.compiler, &self.device.cache);
        let Ok(version) = compiler.version() else { return };
        // Without a folder they would have no place to wait in.
        let can = compiler.is_parallel() && cache.folder().is_some();
        if !can || self.is_at_hand(first) {
            return;
        }
        std::thread::scope(|scope| {
            for program in programs.iter().filter(|program| !self.is_at_hand(program)) {
                let (key, version) = (program.key(&self.facts().architecture()), &version);
                scope.spawn(move || drop(self.compiled(program, &key, version)));
            }
        });
    }

    /// Whether nobody has to compile a program.
    pub(crate) fn is_at_hand(&self, program: &Program) -> bool {
        let architecture = self.facts().architecture();
        let key = program.key(&architecture);
        self.modules().contains_key(&key)
            || self.kept(program, &key, self.device.compiler.version().ok().as_deref()).is_some()
    }

    /// Machine code from the cache, or that was built before.
    fn kept(&self, program: &Program, key: &str, compiler: Option<&str>) -> Option<Vec<u8>> {
        let cached = compiler.and_then(|version| self.device.cache.load(&Cache::key(key, version)));
        let architecture = self.facts().architecture();
        cached.or_else(|| prebuilt::machine_code(program, &architecture, &prebuilt::folders()))
    }

    /// An image that nobody has made before: compiled, or PTX for the driver to compile.
    fn image(&self, program: &Program, key: &str) -> Result<Vec<u8>, Error> {
        let architecture = self.facts().architecture();
        let compiler = &self.device.compiler;
        let no_compiler = match compiler.version() {
            Ok(version) => return self.compiled(program, key, &version),
            Err(error) => error.to_string(),
        };
        let folders = prebuilt::folders();
        prebuilt::ptx(program, &folders).ok_or_else(|| Error::KernelsMissing {
            file: program.source.file,
            architecture,
            key: key.to_owned(),
            compiler: no_compiler,
            tried: folders.iter().map(|folder| folder.display().to_string()).collect(),
        })
    }

    /// The image that the compiler of `version` makes, which the cache keeps.
    fn compiled(&self, program: &Program, key: &str, version: &str) -> Result<Vec<u8>, Error> {
        let compiler = &self.device.compiler;
        let image = match compiler.compile(program, &self.facts().architecture()) {
            // The driver's own compiler takes it from there, for any later device.
            Err(Error::UnknownArchitecture { .. }) => {
                compiler.compile(program, prebuilt::PTX_ARCHITECTURE)?
            }
            compiled => compiled?,
        };
        self.device.kernels_compiled.fetch_add(1, Ordering::Relaxed);
        self.device.cache.store(&Cache::key(key, version), &image.bytes);
        Ok(image.bytes)
    }
}

impl Module {
    fn load(gpu: &Gpu, program: &Program, mut image: Vec<u8>) -> Result<Module, Error> {
        let file = program.source.file;
        let operation = || format!("loading the kernels of {file}");
        gpu.bind(operation)?;
        // PTX is text that must end in zero; a cubin ends where it says.
        image.push(0);
        // SAFETY: the image came from a compiler, whole: the cache checks its hash.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
        Ok(Module { handle: handle.during(operation)?, file })
    }

    /// One of its kernels.
    pub(crate) fn kernel(self: &Arc<Module>, name: &'static str) -> Result<Kernel, Error> {
        let symbol = CString::new(name).expect("names of kernels have no zero byte");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.handle, symbol) }
            .during(|| format!("looking for the kernel {name} of {}", self.file))?;
        Ok(Kernel { function, name, _module: Arc::clone(self) })
    }

    /// Whether all kernels of `program`, which it is of, keep all numbers in registers.
    fn fits_registers(self: &Arc<Module>, gpu: &Gpu, program: &Program) -> Result<bool, Error> {
        for name in program.kernels {
            if self.kernel(name)?.facts(gpu)?.local_bytes > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Kernel {
    /// Lets launches ask for as much shared memory.
    ///
    /// # Errors
    ///
    /// What the driver refuses, such as more than a block of this device can have.
    pub(crate) fn allow_shared(&self, gpu: &Gpu, shared_bytes: u32) -> Result<(), Error> {
        let operation = || format!("giving {} {shared_bytes} bytes of shared memory", self.name);
        gpu.bind(operation)?;
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a loaded module.
        let done = unsafe {
            result::function::set_function_attribute(self.function, which, shared_bytes as i32)
        };
        done.during(operation)
    }

    /// Whether it was compiled for devices that have kernels begin before the work before them is done.
    pub(crate) fn can_begin_early(&self, gpu: &Gpu) -> Result<bool, Error> {
        const FIRST: i32 = 90;
        let operation = || format!("asking what {} was compiled for", self.name);
        gpu.bind(operation)?;
        let which = Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: the function belongs to a loaded module.
        let version = unsafe { result::function::get_function_attribute(self.function, which) };
        Ok(version.during(operation)? >= FIRST)
    }

    /// What it takes of a multiprocessor.
    pub(crate) fn facts(&self, gpu: &Gpu) -> Result<KernelFacts, Error> {
        let operation = || format!("asking for the registers of {}", self.name);
        gpu.bind(operation)?;
        let attribute = |which| {
            // SAFETY: the function belongs to a loaded module.
            let value = unsafe { result::function::get_function_attribute(self.function, which) };
            value.during(operation).map(i32::unsigned_abs)
        };
        Ok(KernelFacts {
            name: self.name,
            registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is unloaded once, when the device goes and no kernel is left. The
        // context may be gone before it, which the driver answers with an error for nobody.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}
