//! DLPack, version 0: zero-copy exchange of tensors between frameworks.
//! The structures have the layout of `dlpack.h`, <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::{
    any::Any,
    ffi::{CStr, c_void},
};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*, types::PyCapsule};

/// Device type and ID of host memory.
pub(crate) const HOST: (i32, i32) = (1, 0);
/// Device type of CUDA.
pub(crate) const CUDA: i32 = 2;

/// Name of a capsule that still owns its tensor.
const UNUSED: &CStr = c"dltensor";

/// The type of one value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl Element {
    pub(crate) const fn int(bits: u8) -> Self {
        Self { code: 0, bits, lanes: 1 }
    }

    pub(crate) const fn uint(bits: u8) -> Self {
        Self { code: 1, bits, lanes: 1 }
    }

    pub(crate) const fn float(bits: u8) -> Self {
        Self { code: 2, bits, lanes: 1 }
    }

    /// A boolean of one byte.
    pub(crate) const fn bool() -> Self {
        Self { code: 6, bits: 8, lanes: 1 }
    }
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    element: Element,
    shape: *mut i64,
    /// Null, because rows are contiguous.
    strides: *mut i64,
    byte_offset: u64,
    owned: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// The memory that a [`Managed`] refers to.
struct Owned {
    shape: Vec<i64>,
    _keeper: Box<dyn Any + Send>,
}

/// Returns BufferError, as the protocol requires, if the consumer requests a copy or another device.
pub(crate) fn as_it_lies(lies: (i32, i32), asked: Option<(i32, i32)>, copy: Option<bool>) -> PyResult<()> {
    let words = match asked {
        Some(asked) if asked != lies => {
            format!("the batch is on device {lies:?} (type, number) and cannot be exported to {asked:?}")
        }
        _ if copy == Some(true) => {
            "copy is True, but DLPack exports a batch without a copy; copy the result instead".into()
        }
        _ => return Ok(()),
    };
    Err(PyBufferError::new_err(words))
}

/// Creates a capsule of a tensor with `shape` at `address` of a device. The memory must be valid while `keeper` exists.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    keeper: Box<dyn Any + Send>,
    (device_type, device_id): (i32, i32),
    address: u64,
    shape: &[usize],
    element: Element,
) -> PyResult<Bound<'py, PyCapsule>> {
    let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    let mut owned = Box::new(Owned { shape, _keeper: keeper });
    let managed = Box::new(Managed {
        data: address as *mut c_void,
        device_type,
        device_id,
        dimensions: owned.shape.len() as i32,
        element,
        shape: owned.shape.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
        owned: Box::into_raw(owned).cast(),
        deleter: Some(delete),
    });
    let managed = Box::into_raw(managed);
    // SAFETY: the pointer is a live `Managed`. As DLPack specifies, `destroy` frees it unless a consumer has taken it.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), UNUSED.as_ptr(), Some(destroy)) };
    if capsule.is_null() {
        // SAFETY: the tensor was not shared.
        unsafe { delete(managed) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: `PyCapsule_New` returned a new reference to a capsule.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule).cast_into_unchecked() })
}

/// Frees a tensor. Called once, by its consumer or by `destroy`.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both pointers come from `Box::into_raw` in `capsule` and are freed only here.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.owned.cast::<Owned>()));
    }
}

/// Destroys a capsule. A consumer that has taken the tensor renamed the capsule, and frees the tensor itself.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the destroyed capsule. Under its original name, the capsule contains a live `Managed`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}
