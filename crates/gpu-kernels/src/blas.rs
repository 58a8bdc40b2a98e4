//! Matrix products by cuBLASLt: planned once, the algorithm chosen once and kept on disk.
//!
//! A plan asks the library for candidates, times each in a recording on numbers that look random,
//! and keeps the fastest in the kernel cache under the device, the driver, the library's version and
//! the shape, so that later runs take the same one and have the same bits. Without a cache
//! folder nothing could make two runs agree, so the library's first candidate is taken untimed.
//! Candidates that split a sum add the parts in order, in f32; none adds atomically.
//!
//! Matrices are row-major here and column-major there: a product is handed over as its transpose.

#![expect(unsafe_code, reason = "calls into cuBLASLt with addresses and its own handles")]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as LibraryEpilogue,
    cublasLtMatmulDescAttributes_t as DescAttribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasLtReductionScheme_t as Reduction,
    cudaDataType_t as DataType,
};

use crate::cache::Cache;
use crate::library::{self, Library};
use crate::product::{Epilogue, Lane, Operands, ProductShape};
use crate::timing;
use crate::{Buffer, Error, Gpu, Precision, graph, version};

/// Most memory that an algorithm may use beside its matrices.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Candidates that are timed.
const CANDIDATES: usize = 32;

/// The library, ready for calls.
pub(crate) struct Handle(sys::cublasLtHandle_t);

// SAFETY: the library's functions may be called with one handle from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`], and what the library refuses.
    pub(crate) fn open(gpu: &Gpu) -> Result<Arc<Handle>, Error> {
        library::load(Library::CublasLt)?;
        gpu.bind(|| "opening cuBLASLt".to_owned())?;
        let handle = result::create_handle().map_err(|e| refused("opening cuBLASLt", e))?;
        Ok(Arc::new(Handle(handle)))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The library waits for the whole device, which recordings of other threads would not survive.
        // SAFETY: the handle is destroyed once, after the plans that share it.
        let _ = graph::alone(|| unsafe { result::destroy_handle(self.0) });
    }
}

/// A product that cuBLASLt computes.
pub(crate) struct Plan {
    handle: Arc<Handle>,
    descriptors: Descriptors,
    algorithm: Algorithm,
    epilogue: Epilogue,
    count: usize,
    name: String,
    /// The address of the bias is an attribute of the descriptor, set for every call, and so are steps.
    calling: Mutex<()>,
}

/// What the library knows of a product.
struct Descriptors {
    product: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

/// How the library computes it.
#[derive(Clone, Copy)]
struct Algorithm {
    opaque: sys::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

// SAFETY: descriptors are plain memory of the library; the one that calls change is guarded.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Plan {
    /// Plans a product; `None` if the library has no algorithm for it.
    ///
    /// # Errors
    ///
    /// What the library or the driver refuses, and [`Error::Recording`].
    pub(crate) fn new(
        lane: &Lane,
        handle: &Arc<Handle>,
        shape: &ProductShape,
    ) -> Result<Option<Plan>, Error> {
        let gpu = lane.gpu();
        gpu.refuse_recording("planning a product")?;
        graph::alone(|| Plan::new_alone(lane, handle, shape))
    }

    fn new_alone(
        lane: &Lane,
        handle: &Arc<Handle>,
        shape: &ProductShape,
    ) -> Result<Option<Plan>, Error> {
        let gpu = lane.gpu();
        let name = shape.to_string();
        let descriptors = Descriptors::new(shape).map_err(|e| refused(&name, e))?;
        let key = key(gpu, &name);
        let cache = &gpu.device.cache;
        let kept = cache.load(&key).and_then(|bytes| Algorithm::from_bytes(&bytes));
        let kept = kept.filter(|kept| descriptors.accept(handle, *kept));
        let mut plan = Plan {
            handle: Arc::clone(handle),
            algorithm: Algorithm {
                opaque: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
                workspace_bytes: 0,
            },
            descriptors,
            epilogue: shape.epilogue,
            count: shape.count,
            name,
            calling: Mutex::default(),
        };
        let (scratch, operands) = scratch(gpu, shape)?;
        let is_replaced = kept.is_some();
        if let Some(kept) = kept {
            plan.algorithm = kept;
            if plan.works(lane, operands) {
                return Ok(Some(plan));
            }
        }
        let candidates = plan.candidates(shape)?;
        gpu.device.products_timed.fetch_add(1, Ordering::Relaxed);
        let found = if cache.folder().is_some() {
            plan.fastest(lane, operands, &candidates)
        } else {
            candidates.first().copied()
        };
        let Some(found) = found else { return Ok(None) };
        if is_replaced {
            cache.store(&key, &found.to_bytes());
            plan.algorithm = found;
        } else {
            // Whoever chose first has chosen for all.
            let kept = Algorithm::from_bytes(&cache.keep_first(&key, found.to_bytes()));
            plan.algorithm = kept.unwrap_or(found);
        }
        let works = plan.works(lane, operands);
        drop(scratch);
        Ok(works.then_some(plan))
    }

    /// Queues the product.
    ///
    /// # Errors
    ///
    /// What the library refuses.
    ///
    /// # Safety
    ///
    /// 1. The operands are matrices of the plan's shape and types on the device of `lane`, allocated
    ///    until the work is done.
    /// 2. Nothing else uses the output meanwhile but work on the same stream.
    pub(crate) unsafe fn queue(
        &self,
        lane: &Lane,
        operands: Operands,
        adds: bool,
    ) -> Result<(), Error> {
        lane.gpu().bind(|| self.name.clone())?;
        let (one, beta) = (1.0f32, if adds { 1.0f32 } else { 0.0 });
        let _guard = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        let Descriptors { product, a, b, out } = self.descriptors;
        // SAFETY: the descriptors live as long as the plan; the scalars are read before the call
        // returns; the workspace is as large as every algorithm was allowed. The rest are the caller's duties.
        unsafe {
            set_pointers(product, self.epilogue, operands).map_err(|e| refused(&self.name, e))?;
            if self.count > 1 {
                self.descriptors.set_steps(operands.steps).map_err(|e| refused(&self.name, e))?;
            }
            result::matmul(
                self.handle.0,
                product,
                ptr::from_ref(&one).cast(),
                ptr::from_ref(&beta).cast(),
                operands.b as *const c_void,
                a,
                operands.a as *const c_void,
                b,
                operands.out as *const c_void,
                out,
                operands.out as *mut c_void,
                out,
                &self.algorithm.opaque,
                lane.workspace() as *mut c_void,
                WORKSPACE_BYTES,
                lane.gpu().stream.cu_stream().cast(),
            )
        }
        .map_err(|error| refused(&self.name, error))
    }

    /// What the library would try, its favourite first.
    fn candidates(&self, shape: &ProductShape) -> Result<Vec<Algorithm>, Error> {
        let failed = |error| refused(&self.name, error);
        let preference = result::create_matmul_pref().map_err(failed)?;
        let empty = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let mut found = [empty; CANDIDATES];
        let mut count = 0;
        let Descriptors { product, a, b, out } = self.descriptors;
        // SAFETY: all handles live; the list has room for as many as are asked for.
        let asked = unsafe {
            prefer(preference, shape).and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle.0,
                    product,
                    a,
                    b,
                    out,
                    out,
                    preference,
                    CANDIDATES as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            })
        };
        // SAFETY: it was created above and is destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        match asked {
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
            Ok(()) => {
                let found = found.iter().take(usize::try_from(count).unwrap_or(0));
                let usable = found.filter(|result| result.state.result().is_ok());
                let algorithm = |result: &sys::cublasLtMatmulHeuristicResult_t| Algorithm {
                    opaque: result.algo,
                    workspace_bytes: result.workspaceSize,
                };
                Ok(usable.map(algorithm).collect())
            }
        }
    }

    /// The fastest of some algorithms on scratch matrices; `None` if none works.
    fn fastest(
        &mut self,
        lane: &Lane,
        operands: Operands,
        candidates: &[Algorithm],
    ) -> Option<Algorithm> {
        let mut best: Option<(f64, Algorithm)> = None;
        for &candidate in candidates {
            self.algorithm = candidate;
            // What the library offers and then refuses is no candidate.
            if !self.works(lane, operands) {
                continue;
            }
            // SAFETY: the operands are scratch matrices of the shape's sizes, which live until the work
            // is done: the timing waits for it.
            let time = timing::ms(lane.gpu(), || unsafe { self.queue(lane, operands, false) });
            if let Ok(ms) = time
                && best.is_none_or(|(best_ms, _)| ms < best_ms)
            {
                best = Some((ms, candidate));
            }
        }
        best.map(|(_, algorithm)| algorithm)
    }

    /// Whether the algorithm computes. A second try counts: the first may be answered with the failure
    /// of another algorithm before.
    fn works(&self, lane: &Lane, operands: Operands) -> bool {
        (0..2).any(|_| self.warm_up(lane, operands).is_ok())
    }

    /// Computes scratch matrices in every way that will be asked for: the library loads its kernels at
    /// their first use, which must not fall into a recording.
    fn warm_up(&self, lane: &Lane, operands: Operands) -> Result<(), Error> {
        // SAFETY: the operands are scratch matrices of the shape's sizes, which live until the work is
        // done, as is waited for.
        unsafe {
            self.queue(lane, operands, false)?;
            if self.epilogue == Epilogue::None {
                self.queue(lane, operands, true)?;
            }
        }
        lane.gpu().synchronize()
    }
}

impl Descriptors {
    fn new(shape: &ProductShape) -> Result<Descriptors, CublasError> {
        let compute = match shape.precision {
            Precision::Fp32 | Precision::Bf16 => Compute::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let input = data_type(shape.precision.is_bf16());
        let output = data_type(shape.is_bf16_out);
        let stored = |side: crate::product::Side, rows: usize, columns: usize| {
            // Row-major [rows, columns], or its transpose, is column-major the other way round.
            let (rows, columns) =
                if side.is_transposed { (columns, rows) } else { (rows, columns) };
            result::create_matrix_layout(input, columns as u64, rows as u64, side.row as i64)
        };
        let product = result::create_matmul_desc(compute, DataType::CUDA_R_32F)?;
        let descriptors = Descriptors {
            product,
            a: stored(shape.b, shape.k, shape.n)?,
            b: stored(shape.a, shape.m, shape.k)?,
            out: result::create_matrix_layout(
                output,
                shape.n as u64,
                shape.m as u64,
                shape.out_row as i64,
            )?,
        };
        if shape.count > 1 {
            let count = shape.count as i32;
            for layout in [descriptors.a, descriptors.b, descriptors.out] {
                let attribute = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
                // SAFETY: the layout lives, and the attribute has the type of the value.
                unsafe { set_layout(layout, attribute, &count)? };
            }
            descriptors.set_steps(shape.dense_steps())?;
        }
        // SAFETY: the descriptor lives.
        unsafe {
            set(
                product,
                DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA,
                &i32::from(shape.b.is_transposed),
            )?;
            set(
                product,
                DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB,
                &i32::from(shape.a.is_transposed),
            )?;
            let epilogue = match shape.epilogue {
                Epilogue::None => LibraryEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
                Epilogue::Bias => LibraryEpilogue::CUBLASLT_EPILOGUE_BIAS,
                Epilogue::Gelu => LibraryEpilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                Epilogue::GeluGradient => LibraryEpilogue::CUBLASLT_EPILOGUE_DGELU,
                // The right factor is the library's left one.
                Epilogue::ColumnSums => LibraryEpilogue::CUBLASLT_EPILOGUE_BGRADA,
            };
            set(product, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            if matches!(shape.epilogue, Epilogue::Bias | Epilogue::Gelu | Epilogue::ColumnSums) {
                set(product, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &output)?;
            }
            if matches!(shape.epilogue, Epilogue::Gelu | Epilogue::GeluGradient) {
                let row = shape.out_row as i64;
                set(product, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &row)?;
            }
            // The heuristic looks at these; a call sets its own.
            set_pointers(
                product,
                shape.epilogue,
                Operands { bias: 256, aux: 256, ..Operands::default() },
            )?;
        }
        Ok(descriptors)
    }

    /// Sets how far the matrices of one product are from those of the next.
    fn set_steps(&self, [out, a, b]: [i64; 3]) -> Result<(), CublasError> {
        let attribute = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        // The right factor is the library's left one.
        for (layout, step) in [(self.out, out), (self.b, a), (self.a, b)] {
            // SAFETY: the layout lives, and the attribute has the type of the value.
            unsafe { set_layout(layout, attribute, &step)? };
        }
        Ok(())
    }

    /// Whether the library takes an algorithm that was kept on disk.
    fn accept(&self, handle: &Handle, algorithm: Algorithm) -> bool {
        let mut checked = std::mem::MaybeUninit::uninit();
        // SAFETY: all handles live; the library writes the result, which nobody reads.
        let answer = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle.0,
                self.product,
                self.a,
                self.b,
                self.out,
                self.out,
                &algorithm.opaque,
                checked.as_mut_ptr(),
            )
        };
        answer.result().is_ok() && algorithm.workspace_bytes <= WORKSPACE_BYTES
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: each was created by `new` and is destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in [self.a, self.b, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

impl Algorithm {
    fn to_bytes(self) -> Vec<u8> {
        let words = self.opaque.data.into_iter().chain([self.workspace_bytes as u64]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Algorithm> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (data, workspace) = words.split_first_chunk::<8>()?;
        let opaque = sys::cublasLtMatmulAlgo_t { data: *data };
        Some(Algorithm { opaque, workspace_bytes: *workspace.first()? as usize })
    }
}

/// The name that a choice is kept under.
pub(crate) fn key(gpu: &Gpu, shape: &str) -> String {
    let facts = gpu.facts();
    let (major, minor) = facts.driver_version;
    let device = format!("{} with driver {major}.{minor}", facts.name);
    let library = version::of(Library::CublasLt).unwrap_or_default();
    Cache::key(&format!("{shape} on {device}"), &format!("cuBLASLt {library}"))
}

/// Scratch matrices of a product.
pub(crate) fn scratch(
    gpu: &Gpu,
    shape: &ProductShape,
) -> Result<(Vec<Buffer<u8>>, Operands), Error> {
    let buffers: Vec<Buffer<u8>> = shape
        .bytes()
        .into_iter()
        .map(|bytes| timing::scratch(gpu, bytes))
        .collect::<Result<_, _>>()?;
    let [out, a, b, bias, aux] = [0, 1, 2, 3, 4].map(|index: usize| buffers[index].address());
    Ok((buffers, Operands { out, a, b, bias, aux, steps: shape.dense_steps() }))
}

/// What candidates may use and rely on.
///
/// # Safety
///
/// The preference lives.
unsafe fn prefer(
    preference: sys::cublasLtMatmulPreference_t,
    shape: &ProductShape,
) -> Result<(), CublasError> {
    let alignment = shape.alignment_bytes as u32;
    let reductions = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: the caller's duty; the value has as many bytes.
        unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
    };
    use PreferenceAttribute as P;
    set(
        P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        ptr::from_ref(&WORKSPACE_BYTES).cast(),
        size_of::<usize>(),
    )?;
    for (attribute, value) in [
        (P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment),
    ] {
        set(attribute, ptr::from_ref(value).cast(), size_of::<u32>())?;
    }
    Ok(())
}

/// Sets an attribute of a product.
///
/// # Safety
///
/// The descriptor lives, and the attribute has the type of the value.
unsafe fn set<T>(
    product: sys::cublasLtMatmulDesc_t,
    attribute: DescAttribute,
    value: &T,
) -> Result<(), CublasError> {
    let bytes = ptr::from_ref(value).cast();
    // SAFETY: the caller's duty.
    unsafe { result::set_matmul_desc_attribute(product, attribute, bytes, size_of::<T>()) }
}

/// Sets an attribute of a matrix.
///
/// # Safety
///
/// The layout lives, and the attribute has the type of the value.
unsafe fn set_layout<T>(
    layout: sys::cublasLtMatrixLayout_t,
    attribute: LayoutAttribute,
    value: &T,
) -> Result<(), CublasError> {
    let bytes = ptr::from_ref(value).cast();
    // SAFETY: the caller's duty.
    unsafe { result::set_matrix_layout_attribute(layout, attribute, bytes, size_of::<T>()) }
}

fn data_type(is_bf16: bool) -> DataType {
    if is_bf16 { DataType::CUDA_R_16BF } else { DataType::CUDA_R_32F }
}

/// Sets the addresses that a call's epilogue needs.
///
/// # Safety
///
/// The descriptor lives.
unsafe fn set_pointers(
    product: sys::cublasLtMatmulDesc_t,
    epilogue: Epilogue,
    operands: Operands,
) -> Result<(), CublasError> {
    let (has_bias, has_aux) = match epilogue {
        Epilogue::None => (false, false),
        Epilogue::Bias | Epilogue::ColumnSums => (true, false),
        Epilogue::Gelu => (true, true),
        Epilogue::GeluGradient => (false, true),
    };
    // SAFETY: the caller's duty; both attributes are addresses.
    unsafe {
        if has_bias {
            set(product, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        if has_aux {
            let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            set(product, attribute, &operands.aux)?;
        }
    }
    Ok(())
}

fn refused(operation: &str, error: CublasError) -> Error {
    Error::Blas { operation: operation.to_owned(), code: format!("{:?}", error.0) }
}
