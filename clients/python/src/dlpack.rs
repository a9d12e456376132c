//! DLPack, version 0: how frameworks hand each other tensors without a copy.
//! The layout is that of `dlpack.h`, <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::{
    any::Any,
    ffi::{CStr, c_void},
};

use pyo3::{ffi, prelude::*, types::PyCapsule};

use crate::errors::of_class;

/// The host's memory, as (device type, device).
pub(crate) const HOST: (i32, i32) = (1, 0);
/// The type of a CUDA device.
pub(crate) const CUDA: i32 = 2;

/// The name of a capsule that nobody has taken the tensor of yet.
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
    /// Null: rows lie one after the other.
    strides: *mut i64,
    byte_offset: u64,
    owned: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// What a [`Managed`] points to.
struct Owned {
    shape: Vec<i64>,
    _keeper: Box<dyn Any + Send>,
}

/// Refuses a view that would have to be a copy, here or to elsewhere.
pub(crate) fn as_it_lies(
    py: Python<'_>,
    lies: (i32, i32),
    asked: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    let words = match asked {
        Some(asked) if asked != lies => {
            format!("the batch lies on device {lies:?} (type, number), and is not shown on {asked:?}")
        }
        _ if copy == Some(true) => "DLPack shows a batch as it lies; copy it afterwards".into(),
        _ => return Ok(()),
    };
    Err(of_class(py, "RequestError", words))
}

/// A capsule with a tensor of `shape` at `address` of a device, where it is as long as `keeper` is.
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
    // SAFETY: the pointer is a live `Managed`, which `destroy` frees unless somebody took it, as DLPack prescribes.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), UNUSED.as_ptr(), Some(destroy)) };
    if capsule.is_null() {
        // SAFETY: nobody else has seen it.
        unsafe { delete(managed) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: `PyCapsule_New` returned a new reference to a capsule.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule).cast_into_unchecked() })
}

/// Frees a tensor. Called once, by whoever took it, or by `destroy`.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both were made by `Box::into_raw` in `capsule`, and are freed nowhere else.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.owned.cast::<Owned>()));
    }
}

/// The destructor of a capsule: whoever took the tensor has renamed it, and frees the tensor later.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that is going away; under its first name it holds a live `Managed`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}
