use std::num::NonZeroU32;

use super::*;

fn tenant(id: u64) -> Tenant {
    Tenant::new(id, NonZeroU32::MIN)
}

#[test]
fn a_tenant_may_hold_seven_times_the_memory_that_is_left() {
    let mut held = HeldBytes::default();
    held.take(tenant(1), 30);
    // 30 + 57 bytes are at most seven times 13 bytes.
    assert!(held.has_room(tenant(1), 57, 100, (0, 0)));
    assert!(!held.has_room(tenant(1), 58, 100, (0, 0)));
    // If 20 of its own bytes are released: 10 + 77 bytes, and 13 are left.
    assert!(held.has_room(tenant(1), 77, 100, (20, 20)));
    assert!(!held.has_room(tenant(1), 78, 100, (20, 20)));
}

#[test]
fn the_first_request_of_a_tenant_and_those_of_the_server_may_take_all_that_is_left() {
    let mut held = HeldBytes::default();
    held.take(tenant(1), 30);
    held.take(Tenant::SERVER, 10);
    for requester in [tenant(2), Tenant::SERVER] {
        assert!(held.has_room(requester, 60, 100, (0, 0)));
        assert!(!held.has_room(requester, 61, 100, (0, 0)));
        assert!(held.has_room(requester, 90, 100, (30, 0)));
        assert!(!held.has_room(requester, 91, 100, (30, 0)));
    }
}

#[test]
fn released_memory_is_there_for_all() {
    let mut held = HeldBytes::default();
    held.take(tenant(1), 30);
    held.take(tenant(2), 20);
    held.release(tenant(1), 30);
    for requester in [tenant(1), Tenant::SERVER] {
        assert!(held.has_room(requester, 80, 100, (0, 0)));
        assert!(!held.has_room(requester, 81, 100, (0, 0)));
    }
    held.release(tenant(2), 20);
    assert!(held.by_tenant.is_empty());
}
