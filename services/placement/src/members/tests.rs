use super::admission::MAX_FIELD_BYTES;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Duration {
    SECOND * seconds
}

fn hello(number: u64) -> Hello {
    Hello {
        name: format!("server-{number}:7050"),
        instance: number,
        version: "0.1.0".into(),
        state: "state".into(),
        zone: None,
        is_draining: false,
    }
}

fn address(number: u64) -> String {
    format!("10.0.0.{number}:7050")
}

fn addresses(numbers: impl IntoIterator<Item = u64>) -> Result<Vec<String>, String> {
    Ok(numbers.into_iter().map(address).collect())
}

/// Server 0 with a list of servers, all of which answered at 0 s.
fn started(numbers: impl IntoIterator<Item = u64> + Clone) -> Members {
    let mut members = Members::new(Config::default(), hello(0));
    members.on_list(at(0), addresses(numbers.clone()));
    for number in numbers {
        members.on_hello(at(0), &address(number), Ok(hello(number)));
    }
    members
}

fn names(members: &Members) -> Vec<u64> {
    let number = |name: &str| name.trim_start_matches("server-").trim_end_matches(":7050").parse().unwrap();
    members.view().members.iter().map(|member| number(&member.name)).collect()
}

fn left(number: u64, reason: LeaveReason) -> Change {
    Change::Left { name: hello(number).name, reason }
}

#[test]
fn listed_servers_become_members_when_they_answer() {
    let mut members = Members::new(Config::default(), hello(0));
    assert!(members.on_list(at(0), addresses([0, 1, 2])).is_empty());
    assert_eq!(members.due(at(0)), [address(0), address(1), address(2)]);
    assert_eq!(members.due(at(0)), Vec::<String>::new());
    assert_eq!(names(&members), [0]);
    assert!(members.on_hello(at(1), &address(0), Ok(hello(0))).is_empty(), "its own answer is no change");
    let joined = Change::Joined { name: hello(1).name, address: address(1) };
    assert_eq!(members.on_hello(at(1), &address(1), Ok(hello(1))), [joined]);
    assert!(members.on_hello(at(1), &address(1), Ok(hello(1))).is_empty());
    assert_eq!(names(&members), [0, 1]);
    assert_eq!(members.view().others.len(), 1);
    assert_eq!(members.view().servers().len(), 2);
}

#[test]
fn an_empty_or_halved_list_is_adopted_after_the_delay_only() {
    for remaining in [vec![], vec![1], vec![5, 6, 7]] {
        let mut members = started(1..=4);
        let lost = 4 - remaining.iter().filter(|number| **number <= 4).count();
        let held = Change::HeldBack { lost, of: 4, delay: at(60) };
        assert_eq!(members.on_list(at(10), addresses(remaining.clone())), [held]);
        assert!(members.on_list(at(40), addresses(remaining.clone())).is_empty());
        assert!(members.on_tick(at(69)).is_empty());
        assert_eq!(names(&members)[..5], [0, 1, 2, 3, 4]);
        assert_eq!(members.held(), Some(ListHold { lost, of: 4, until: at(70) }));
        assert!(members.next_wake().unwrap() <= at(70));
        assert_eq!(members.on_tick(at(70)), [Change::ShrinkAdopted { lost }]);
        assert_eq!(members.listed(), addresses(remaining).unwrap());
    }
}

#[test]
fn a_list_that_recovers_within_the_delay_removes_nothing() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses([]));
    assert_eq!(members.on_list(at(60), addresses(1..=4)), [Change::HoldEnded]);
    assert!(members.on_tick(at(100)).is_empty());
    members.on_list(at(110), addresses([]));
    assert!(members.on_tick(at(169)).is_empty(), "the delay begins again");
    assert_eq!(members.listed().len(), 4);
}

#[test]
fn half_of_the_list_may_leave_at_once() {
    let mut members = started(1..=4);
    assert!(members.on_list(at(10), addresses([1, 2])).is_empty());
    assert_eq!(members.listed().len(), 2);
    assert_eq!(names(&members), [0, 1, 2, 3, 4], "they still answered the last hello");
}

#[test]
fn servers_that_a_shrunk_list_adds_join_at_once() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses([8]));
    assert_eq!(members.due(at(10)).last(), Some(&address(8)));
    members.on_hello(at(11), &address(8), Ok(hello(8)));
    assert_eq!(names(&members), [0, 1, 2, 3, 4, 8]);
}

#[test]
fn a_failing_source_keeps_the_list_and_the_members() {
    let mut members = started(1..=4);
    let fail = || Err::<Vec<String>, _>("no such host".to_owned());
    assert_eq!(members.on_list(at(10), fail()), [Change::SourceFailed { error: "no such host".into() }]);
    assert!(members.on_list(at(500), fail()).is_empty());
    assert!(members.on_tick(at(1_000)).is_empty());
    assert_eq!(names(&members), [0, 1, 2, 3, 4]);
    assert_eq!(members.on_list(at(1_001), addresses(1..=4)), [Change::SourceRecovered]);
}

#[test]
fn a_source_that_fails_during_a_hold_adopts_nothing() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses([]));
    members.on_list(at(20), Err::<Vec<String>, _>("timeout".to_owned()));
    for address in members.due(at(100)) {
        members.on_hello(at(100), &address, Err("timeout".to_owned()));
    }
    assert!(members.on_tick(at(100)).is_empty());
    assert_eq!(members.listed().len(), 4);
    // The caller is not asked to try again and again until the source recovers.
    assert!(members.next_wake().unwrap() > at(100));
}

#[test]
fn a_list_above_the_limit_is_not_adopted() {
    let mut members = Members::new(Config { max_members: 3, ..Config::default() }, hello(0));
    members.on_list(at(0), addresses([1, 2]));
    let too_long = Change::ListTooLong { listed: 4, max: 3 };
    assert_eq!(members.on_list(at(1), addresses(1..=200)), [too_long]);
    assert!(members.on_list(at(2), addresses(1..=4)).is_empty(), "it is reported once");
    assert_eq!(members.listed().len(), 2);
}

#[test]
fn a_cluster_above_the_limit_refuses_servers() {
    let mut members = Members::new(Config { max_members: 2, ..Config::default() }, hello(0));
    members.on_list(at(0), addresses([1, 2]));
    members.on_hello(at(0), &address(1), Ok(hello(1)));
    let changes = members.on_hello(at(0), &address(2), Ok(hello(2)));
    assert!(changes[0].to_string().contains("already 2 members, the value of `max_members`"), "{changes:?}");
    assert_eq!(names(&members), [0, 1]);
}

#[test]
fn a_listed_server_that_does_not_answer_stays_a_member_until_its_timeout() {
    let mut members = started(1..=4);
    for second in 1..600 {
        assert!(members.on_hello(at(second), &address(1), Err("refused".into())).is_empty());
        assert!(members.on_tick(at(second)).is_empty());
    }
    let view = members.view();
    assert_eq!((view.members[1].answers, view.members[1].is_listed), (false, true));
    assert_eq!(view.members[1].last_heard, Some(at(0)));
    assert_eq!(members.on_tick(at(600)), [left(1, LeaveReason::Silent)]);
    assert_eq!(members.view().others[0].error.as_deref(), Some("refused"), "it is still greeted");
    assert!(members.on_hello(at(601), &address(1), Ok(hello(1))).is_empty());
    assert!(members.next_wake().unwrap() <= at(660));
    assert_eq!(members.on_hello(at(660), &address(1), Ok(hello(1))).len(), 1);
}

#[test]
fn a_server_leaves_when_it_is_not_listed_and_does_not_answer() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses(2..=4));
    assert_eq!(members.due(at(10)).first(), Some(&address(1)), "it is greeted at once");
    assert!(members.on_hello(at(12), &address(1), Err("refused".into())).is_empty());
    assert!(members.on_tick(at(69)).is_empty());
    assert!(members.next_wake().unwrap() <= at(70));
    assert_eq!(members.on_tick(at(70)), [left(1, LeaveReason::Gone)]);
    assert_eq!(names(&members), [0, 2, 3, 4]);
    assert!(members.on_hello(at(71), &address(1), Ok(hello(1))).is_empty(), "late answers are ignored");
}

#[test]
fn a_server_that_answers_but_is_not_listed_leaves_later() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses(2..=4));
    for second in 11..310 {
        members.on_hello(at(second), &address(1), Ok(hello(1)));
        assert!(members.on_tick(at(second)).is_empty());
    }
    assert_eq!(members.on_tick(at(310)), [left(1, LeaveReason::Unlisted)]);
    assert!(!members.due(at(1_000)).contains(&address(1)));
}

#[test]
fn a_removed_server_returns_after_the_delay() {
    let mut members = started(1..=4);
    members.on_list(at(10), addresses(2..=4));
    members.on_hello(at(12), &address(1), Err("refused".into()));
    members.on_tick(at(70));
    members.on_list(at(71), addresses(1..=4));
    assert!(members.on_hello(at(72), &address(1), Ok(hello(1))).is_empty());
    assert!(members.on_hello(at(129), &address(1), Ok(hello(1))).is_empty());
    members.on_tick(at(129));
    assert_eq!(members.on_hello(at(130), &address(1), Ok(hello(1))).len(), 1);
    assert_eq!(names(&members), [0, 1, 2, 3, 4]);
}

#[test]
fn a_list_that_flaps_every_second_changes_no_member() {
    let mut members = started(1..=8);
    let revision = members.revision();
    for second in 1..600 {
        let list = match second % 4 {
            0 => addresses(1..=8),
            1 => addresses([]),
            2 => addresses(1..=4),
            _ => addresses(5..=8),
        };
        members.on_list(at(second), list);
        members.on_tick(at(second));
        for number in 1..=8 {
            // A server answers only while it is listed.
            let answers = second % 4 == 0;
            let result = if answers { Ok(hello(number)) } else { Err("timeout".to_owned()) };
            members.on_hello(at(second), &address(number), result);
        }
    }
    assert_eq!((members.revision(), members.view().members.len()), (revision, 9));
}

#[test]
fn a_server_of_another_state_is_refused_with_both_states() {
    let mut members = started(1..=2);
    members.on_list(at(1), addresses(1..=3));
    let other = Hello { state: "other".into(), ..hello(3) };
    let changes = members.on_hello(at(1), &address(3), Ok(other.clone()));
    let words = changes[0].to_string();
    for part in ["server-3:7050", "10.0.0.3:7050", r#""other""#, r#""state""#, "need the same `state`"] {
        assert!(words.contains(part), "{words}");
    }
    assert!(members.on_hello(at(2), &address(3), Ok(other)).is_empty(), "it is reported once");
    assert_eq!(members.view().others[0].refusal.as_ref().unwrap().name, hello(3).name);
    assert_eq!(members.on_hello(at(3), &address(3), Ok(hello(3))).len(), 1, "it joins with the right state");
}

#[test]
fn a_member_that_changes_its_state_leaves_at_once() {
    let mut members = started(1..=2);
    let changes = members.on_hello(at(1), &address(2), Ok(Hello { state: "other".into(), ..hello(2) }));
    assert_eq!(changes[1], left(2, LeaveReason::OtherState));
    assert_eq!(names(&members), [0, 1]);
}

#[test]
fn a_name_keeps_its_place_when_its_address_changes() {
    let mut members = started(1..=3);
    let revision = members.revision();
    // The server restarts: the old address still answered the last hello.
    members.on_list(at(10), Ok([address(1), address(2), address(33)]));
    let restarted = Hello { instance: 333, ..hello(3) };
    assert!(members.on_hello(at(11), &address(33), Ok(restarted.clone())).is_empty());
    assert!(members.due(at(11)).contains(&address(3)), "the old address is asked");
    members.on_hello(at(12), &address(3), Err("refused".into()));
    assert!(members.on_hello(at(13), &address(33), Ok(restarted)).is_empty());
    members.on_tick(at(500));
    let view = members.view();
    assert_eq!((view.revision, view.members[3].addresses.as_slice()), (revision, &[address(33)][..]));
}

#[test]
fn one_name_at_two_addresses_of_one_server_is_one_member() {
    let mut members = started(1..=3);
    members.on_list(at(1), Ok([address(1), address(2), address(3), address(30)]));
    assert!(members.on_hello(at(1), &address(30), Ok(hello(3))).is_empty());
    assert_eq!(members.view().members[3].addresses, [address(30), address(3)], "in the order of text");
    members.on_list(at(2), addresses(1..=3));
    assert_eq!(members.view().members[3].addresses, [address(3)]);
}

#[test]
fn one_name_of_two_servers_is_refused_at_the_second_address() {
    let mut members = started(1..=3);
    members.on_list(at(1), addresses(1..=4));
    let same = Hello { instance: 44, ..hello(3) };
    assert!(members.on_hello(at(1), &address(4), Ok(same.clone())).is_empty());
    members.on_hello(at(2), &address(3), Ok(hello(3)));
    let changes = members.on_hello(at(3), &address(4), Ok(same));
    assert!(changes[0].to_string().contains("10.0.0.3:7050 has the same name"), "{changes:?}");
    assert_eq!(members.view().members[3].addresses, [address(3)]);
}

#[test]
fn another_server_with_the_own_name_is_refused() {
    let mut members = started(1..=2);
    members.on_list(at(1), addresses(1..=3));
    let changes = members.on_hello(at(1), &address(3), Ok(Hello { instance: 9, ..hello(0) }));
    assert!(changes[0].to_string().contains("server-0:7050 (this server) has the same name"), "{changes:?}");
}

#[test]
fn an_address_that_is_reused_by_another_server_keeps_the_former_for_the_delay() {
    let mut members = started(1..=2);
    let changes = members.on_hello(at(10), &address(2), Ok(hello(5)));
    assert_eq!(changes, [Change::Joined { name: hello(5).name, address: address(2) }]);
    assert_eq!(names(&members), [0, 1, 2, 5]);
    assert_eq!(members.on_tick(at(70)), [left(2, LeaveReason::Gone)]);
}

#[test]
fn draining_zone_and_version_of_a_member_are_updated() {
    let mut members = started(1..=2);
    let revision = members.revision();
    let drains = Hello { is_draining: true, ..hello(2) };
    let changes = members.on_hello(at(1), &address(2), Ok(drains.clone()));
    assert_eq!(changes, [Change::Draining { name: hello(2).name, is_draining: true }]);
    let updated = Hello { version: "0.2.0".into(), ..drains.clone() };
    assert_eq!(members.on_hello(at(2), &address(2), Ok(updated)).len(), 1);
    assert_eq!(members.revision(), revision + 1, "the version does not affect the placement");
    members.on_hello(at(3), &address(2), Ok(Hello { zone: Some("a".into()), ..drains }));
    assert_eq!(members.revision(), revision + 2);
    members.set_draining(true);
    assert_eq!(members.revision(), revision + 3);
    assert!(members.view().members[0].is_draining);
}

#[test]
fn answers_with_long_or_empty_fields_are_refused() {
    let long = "x".repeat(MAX_FIELD_BYTES + 1);
    let answers = [
        Hello { name: String::new(), ..hello(2) },
        Hello { name: long.clone(), ..hello(2) },
        Hello { zone: Some(long.clone()), ..hello(2) },
        Hello { version: long, ..hello(2) },
    ];
    for answer in answers {
        let mut members = started(1..=1);
        members.on_list(at(1), addresses(1..=2));
        let changes = members.on_hello(at(1), &address(2), Ok(answer));
        assert!(changes[0].to_string().contains("expected 1 to 512"), "{changes:?}");
        assert_eq!(names(&members), [0, 1]);
    }
}

#[test]
fn hellos_pause_longer_after_each_failure() {
    let mut members = started(1..=1);
    let mut now = at(10);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        members.due(now);
        members.on_hello(now, &address(1), Err("refused".into()));
        let next = members.next_wake().unwrap();
        pauses.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 3, 3, 3, 3, 3]);
}

#[test]
fn the_pauses_of_many_silent_servers_leave_time_for_the_hellos_to_the_others() {
    let mut members = started(1..=500);
    let mut now = at(10);
    for _ in 0..8 {
        members.due(now);
        members.on_hello(now, &address(1), Err("refused".into()));
        now += at(10);
    }
    members.due(now);
    members.on_hello(now, &address(1), Err("refused".into()));
    assert_eq!(members.contacts[&address(1)].next_hello - now, HELLO_SPACING * 500);
}

/// Servers that did not answer for some seconds are members that answer, at most five seconds after the network recovers. A hello that
/// was sent before the recovery fails after its time limit of 2 s.
#[test]
fn servers_know_each_other_again_five_seconds_after_the_network_recovers() {
    // After ten minutes, they have left the cluster.
    for seconds in [3, 100, 700] {
        for phase in 0..50 {
            let mut members = started(1..=3);
            let recovery = at(seconds) + at(phase) / 10;
            while let Some(now) = members.next_wake().filter(|now| *now <= recovery) {
                members.on_tick(now);
                for address in members.due(now) {
                    // The calls of one time are sent together. They fail together, before the next time.
                    members.on_hello(now + at(2), &address, Err("no answer".into()));
                }
            }
            let known = |members: &Members| {
                let (view, answering) = (names(members), members.contacts.values().all(Contact::answers));
                view == [0, 1, 2, 3] && answering
            };
            let mut agreed = recovery;
            while !known(&members) {
                let now = members.next_wake().unwrap();
                members.on_tick(now);
                for address in members.due(now) {
                    let number = (1..=3).find(|number| self::address(*number) == address).unwrap();
                    members.on_hello(now, &address, Ok(hello(number)));
                }
                agreed = now;
            }
            assert!(agreed - recovery <= at(5), "{seconds} s, {phase}: {:?}", agreed - recovery);
        }
    }
}

#[test]
fn an_address_without_a_result_is_not_greeted_again() {
    let mut members = Members::new(Config::default(), hello(0));
    members.on_list(at(0), addresses([0, 1]));
    assert_eq!(members.due(at(0)), [address(0), address(1)]);
    members.on_hello(at(1), &address(0), Ok(hello(0)));
    assert_eq!(members.due(at(1000)), [address(0)], "the hello to the other address is still running");
    members.on_hello(at(1000), &address(1), Err("no answer".into()));
    assert_eq!(members.due(at(2000)), [address(1)]);
}

#[test]
fn hellos_of_many_servers_are_spread() {
    let mut members = Members::new(Config::default(), hello(0));
    members.on_list(at(0), addresses(0..1_000));
    let mut greeted = 0;
    for tenth in 0..200 {
        let now = SECOND / 10 * tenth;
        let due = members.due(now);
        for address in &due {
            let number = address.trim_start_matches("10.0.0.").trim_end_matches(":7050").parse().unwrap();
            members.on_hello(now, address, Ok(hello(number)));
        }
        if tenth == 0 {
            assert_eq!(due.len(), 1_000, "a new list is greeted at once");
            continue;
        }
        assert!(due.len() < 60, "{} hellos at once", due.len());
        greeted += due.len();
    }
    assert!(greeted > 950, "{greeted}");
}
