use super::*;

#[test]
fn slabs_are_aligned_and_have_the_requested_length() {
    let slabs = Slabs::new(1 << 30);
    for len in [0, 1, 63, 4096, MAPPED_BYTES - 1, MAPPED_BYTES, 3 << 20, (8 << 20) + 5] {
        let mut slab = slabs.take(len).unwrap();
        assert_eq!((slab.len(), slab.as_ptr() as usize % 64), (len, 0));
        assert!(slab.capacity() >= len && slab.capacity() <= len + len / 8 + GRAIN_BYTES);
        slab.fill(0xff);
    }
}

#[test]
fn the_most_recently_released_slab_is_reused() {
    let slabs = Slabs::new(64 << 20);
    let (first, second) = (slabs.take(4 << 20).unwrap(), slabs.take(4 << 20).unwrap());
    let address = second.as_ptr();
    drop((first, second));
    assert_eq!(slabs.take((4 << 20) - 5).unwrap().as_ptr(), address);
    assert_eq!(slabs.free_bytes(), 8 << 20);
}

#[test]
fn free_slabs_stay_within_their_limit() {
    let slabs = Slabs::new(5 << 20);
    drop([slabs.take(2 << 20).unwrap(), slabs.take(2 << 20).unwrap(), slabs.take(2 << 20).unwrap()]);
    assert_eq!(slabs.free_bytes(), 4 << 20);
}

#[test]
fn free_slabs_are_released_for_slabs_in_use() {
    let slabs = Slabs::within(8 << 20, 1 << 30);
    let take = |mib: usize| slabs.take(mib << 20).unwrap();
    let (first, second) = (take(2), take(4));
    drop((first, second));
    assert_eq!(slabs.free_bytes(), 6 << 20);
    let long = take(6);
    assert_eq!(slabs.free_bytes(), 0, "releasing the first slab was not sufficient");
    drop(take(4));
    assert_eq!(slabs.free_bytes(), 0, "it would exceed the total together with the long one");
    drop((take(2), long));
    assert_eq!(slabs.free_bytes(), 8 << 20);
}

#[test]
fn a_released_slab_replaces_slabs_that_are_no_longer_requested() {
    let slabs = Slabs::new(8 << 20);
    let take = |mib: usize| slabs.take(mib << 20).unwrap();
    drop((take(4), take(4)));
    let other = take(2);
    let address = other.as_ptr();
    drop(other);
    assert_eq!(slabs.free_bytes(), 6 << 20);
    assert_eq!(take(2).as_ptr(), address);
    drop(take(16));
    assert_eq!(slabs.free_bytes(), 6 << 20, "a slab that cannot be kept evicts no other");
}

#[test]
fn a_small_value_does_not_occupy_a_large_slab() {
    let slabs = Slabs::new(1 << 30);
    drop(slabs.take(64 << 20).unwrap());
    assert!(slabs.take(2 << 20).unwrap().capacity() < 4 << 20);
}
