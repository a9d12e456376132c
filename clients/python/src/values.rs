//! Sets of values that filters refer to by name.

use pyo3::{prelude::*, types::PyBytes};

use crate::{errors::raised, rows::rows};

/// A set of values.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ValueSet {
    set: forebay_client::ValueSet,
}

impl ValueSet {
    /// The set. Clones share its bytes.
    pub(crate) fn set(&self) -> forebay_client::ValueSet {
        self.set.clone()
    }
}

#[pymethods]
impl ValueSet {
    /// Creates a set of the values of a single column, as `sending.keys` returns it.
    #[new]
    fn new(py: Python<'_>, column: &Bound<'_, PyAny>) -> PyResult<Self> {
        let rows = rows(column, "values")?;
        // Sorting takes long for many values.
        let set = py.detach(|| match rows.columns() {
            [only] => forebay_client::ValueSet::new(only),
            several => Err(forebay_client::Error::Request(format!(
                "the values have {} columns, expected one",
                several.len()
            ))),
        });
        Ok(Self { set: set.map_err(|error| raised(py, &error))? })
    }

    /// Restores a set from `encoded`.
    #[staticmethod]
    fn from_encoded(py: Python<'_>, encoded: &[u8]) -> PyResult<Self> {
        let set = forebay_client::ValueSet::from_encoded(encoded.to_vec());
        Ok(Self { set: set.map_err(|error| raised(py, &error))? })
    }

    /// SHA-256 of the encoded set, as 64 hexadecimal digits.
    #[getter]
    fn sha256(&self) -> &str {
        self.set.sha256()
    }

    /// Bytes of the encoded set.
    #[getter]
    fn encoded<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.set.encoded())
    }

    fn __len__(&self) -> usize {
        self.set.len()
    }
}
