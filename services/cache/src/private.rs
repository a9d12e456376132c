//! Folders and files that only their owner can access, because the cache stores data without encryption.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Creates a folder that only its owner can access. An existing folder is not changed. Missing parents are created with
/// the default permissions.
///
/// # Errors
/// If the folder or a parent cannot be created.
pub fn create_folder(path: &Path) -> io::Result<()> {
    match (create_subfolder(path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(parent)?;
            create_subfolder(path)
        }
        (created, _) => created,
    }
}

/// As [`create_folder`], but its parent must exist.
///
/// # Errors
/// If the folder cannot be created, or its parent is missing.
pub fn create_subfolder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    match builder.mode(FOLDER_MODE).create(path) {
        // NFS refuses to create an existing folder with the error of its parent.
        Err(_) if path.is_dir() => Ok(()),
        created => created,
    }
}

/// Removes access to an existing folder for all users except the owner.
///
/// # Errors
/// If the folder is missing or belongs to another user, such as a mounted volume.
pub fn restrict_folder(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.permissions().mode() & 0o777 == FOLDER_MODE {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
}

/// Options that open files, and create them so that only the owner can access them.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}
