use super::*;

const ROWS: u64 = 64;
const COST: u64 = ROWS * ROW_COST;

/// Turn of a request of `tenant` that is queued.
fn queued(turns: &mut Turns, tenant: Tenant) -> u64 {
    let turn = turns.take(tenant, ROWS);
    turns.queued(tenant, ROWS);
    turn
}

/// Turn of a request of `tenant` that is queued and sent.
fn sent(turns: &mut Turns, tenant: Tenant) -> u64 {
    let turn = queued(turns, tenant);
    turns.left(tenant, ROWS);
    turns.sent(turn);
    turn
}

#[test]
fn a_tenant_without_queued_requests_still_pays_for_those_that_were_sent() {
    let [one, other] = [1, 2].map(|id| Tenant::new(id, NonZeroU32::MIN));
    let mut turns = Turns::default();
    assert_eq!(sent(&mut turns, one), 0);
    assert_eq!(sent(&mut turns, other), 0);
    assert_eq!(queued(&mut turns, one), COST);
}

#[test]
fn the_next_request_takes_the_turn_of_the_first_cancelled_one_if_all_are_cancelled() {
    let tenant = Tenant::new(1, NonZeroU32::MIN);
    let mut turns = Turns::default();
    sent(&mut turns, tenant);
    assert_eq!([queued(&mut turns, tenant), queued(&mut turns, tenant)], [COST, 2 * COST]);
    for _ in 0..2 {
        turns.left(tenant, ROWS);
        turns.unused(tenant, ROWS);
    }
    assert_eq!(queued(&mut turns, tenant), COST);
}

#[test]
fn rows_of_another_tenant_that_precede_a_new_request_are_in_proportion_to_its_weight() {
    let [one, other] = [(1, 1), (2, 2)].map(|(id, weight)| Tenant::new(id, weight.try_into().unwrap()));
    let mut turns = Turns::default();
    for _ in 0..10 {
        queued(&mut turns, other);
    }
    assert_eq!(turns.rows_before(one, ROWS), 2 * ROWS);
    assert_eq!(turns.rows_before(one, 100 * ROWS), 10 * ROWS, "all that are queued");
    // Turns before the current one do not count: the sixth request of `other` has the turn 5 * COST / 2.
    for turn in 0..6 {
        turns.left(other, ROWS);
        turns.sent(turn * COST / 2);
    }
    assert_eq!(queued(&mut turns, one), 5 * COST / 2);
    assert_eq!(turns.rows_before(one, ROWS), ROWS + 4 * ROWS);
}

#[test]
fn tenants_without_queued_requests_are_forgotten_once_their_turns_have_passed() {
    let [one, other] = [1, 2].map(|id| Tenant::new(id, NonZeroU32::MIN));
    let mut turns = Turns::default();
    sent(&mut turns, one);
    queued(&mut turns, other);
    assert_eq!(turns.tenants.len(), 2);
    turns.sent(COST);
    queued(&mut turns, other);
    assert_eq!(turns.tenants.len(), 1);
}
