use super::*;

#[test]
fn addresses_are_read_as_they_are_written() {
    for text in ["127.0.0.1:8815", "[::1]:0", "unix:/run/forebay.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    assert_eq!("unix:///a/b".parse::<Address>().unwrap().url(), "unix:/a/b");
    for wrong in ["unix:relative", "nonsense", "127.0.0.1", ""] {
        assert!(wrong.parse::<Address>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_and_one_in_use_or_another_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let address = Address::Unix(path.clone());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = address.bind().await.unwrap();
    assert_eq!(address.bind().await.err().unwrap().kind(), io::ErrorKind::AddrInUse);
    drop(listener);
    assert!(!path.exists(), "the socket goes with its listener");
    let deleted = address.bind().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let next = address.bind().await.unwrap();
    drop(deleted);
    assert!(path.exists(), "the socket is that of the next listener");
    drop(next);
    std::fs::write(&path, "mine").unwrap();
    assert_eq!(address.bind().await.err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}
