use std::collections::HashSet;

use super::*;

#[global_allocator]
static HEAP: SampledHeap = SampledHeap;

#[inline(never)]
fn a_function_that_holds_much(count: usize) -> Vec<Box<[u8]>> {
    (0..count).map(|_| vec![1_u8; 64 << 10].into_boxed_slice()).collect()
}

/// Objects and bytes, allocated and held, below the function above.
fn seen(profile: &Profile) -> [i64; 4] {
    let mut sum = [0; 4];
    for sample in &profile.samples {
        let names = crate::symbols(&sample.stack);
        if names.iter().flatten().any(|name| name.contains("a_function_that_holds_much")) {
            for (sum, value) in sum.iter_mut().zip(&sample.values) {
                *sum += value;
            }
        }
    }
    sum
}

#[test]
fn what_is_held_is_seen_and_what_is_released_is_not() {
    sample_heap();
    // 64 MiB in 1024 pieces: 128 notes are to be expected, and fewer than 64 or more than 192 practically never.
    let held = a_function_that_holds_much(1024);
    let [objects, bytes, held_objects, held_bytes] = seen(&profile());
    for (value, expected) in
        [(objects, 1024), (held_objects, 1024), (bytes, 64 << 20), (held_bytes, 64 << 20)]
    {
        assert!((expected / 2..expected * 3 / 2).contains(&value), "{value} instead of about {expected}");
    }
    let text = profile().text();
    assert!(text.contains("a_function_that_holds_much") && !text.contains("heap::note"), "{text}");
    drop(held);
    let [after, _, held_objects, held_bytes] = seen(&profile());
    assert_eq!((held_objects, held_bytes), (0, 0));
    assert!(after >= objects, "what was asked for stays asked for");
}

#[test]
fn the_table_of_the_living_forgets_nothing_else() {
    let mut tables = Box::new(Tables::new());
    let mut random = 88_172_645_463_325_252_u64;
    let mut there = HashSet::new();
    for _ in 0..50_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let place = ((random % 2000) as usize + 1) * 16;
        if there.contains(&place) {
            assert!(tables.remove(place));
            there.remove(&place);
        } else if tables.insert(place, 16, 0) {
            there.insert(place);
        } else {
            assert_eq!(tables.live_count, LIVE / 4 * 3);
        }
        assert_eq!(tables.live_count, there.len());
    }
    for place in there {
        assert!(tables.remove(place));
    }
    assert!(tables.live.iter().all(|noted| noted.place == 0));
    assert!(!tables.remove(16));
}

#[test]
fn stacks_are_entered_once_and_not_without_end() {
    let mut tables = Box::new(Tables::new());
    assert_eq!(tables.stack(&[1, 2, 3]), 1);
    assert_eq!(tables.stack(&[1, 2]), 2);
    assert_eq!(tables.stack(&[1, 2, 3]), 1);
    for number in 0..2 * STACKS {
        tables.stack(&[number + 10]);
    }
    assert_eq!(tables.stack_count, STACKS);
    assert_eq!(tables.stack(&[5]), 0);
    assert_eq!(tables.stack(&[1, 2]), 2);
}

#[test]
fn notes_are_as_far_apart_as_they_should_be() {
    let sum: f64 = (0..10_000).map(|_| interval() as f64).sum();
    let average = sum / 10_000.0 / EVERY as f64;
    assert!((0.9..1.1).contains(&average), "{average}");
}
