//! Whole granules: rounding up to them, and spreading an amount by weights.

/// Returns `bytes` rounded up to whole granules, or the largest multiple of a granule if that would
/// overflow.
pub(crate) fn whole(bytes: u64, granule: u64) -> u64 {
    bytes.checked_next_multiple_of(granule).unwrap_or(u64::MAX / granule * granule)
}

/// Spreads an amount by weights. Each share is at most its `room`, and consists of whole granules,
/// or of all the room if less than a granule is left. Returns the shares; their sum is at most the
/// amount.
pub fn spread(amount: u64, weights: &[u64], room: &[u64], granule: u64) -> Vec<u64> {
    let mut got = vec![0u64; room.len()];
    let mut left = amount;
    // Each iteration but the last fills at least one room, or gives all of them their shares.
    for _ in 0..=room.len() {
        let open: Vec<usize> = (0..room.len()).filter(|one| got[*one] < room[*one]).collect();
        let sum: u128 = open.iter().map(|one| u128::from(weights[*one].max(1))).sum();
        let before = left;
        for one in open {
            let share = (u128::from(before) * u128::from(weights[one].max(1)) / sum.max(1)) as u64;
            let share = (share / granule * granule).min(room[one] - got[one]).min(left);
            got[one] += share;
            left -= share;
        }
        if left == before || left == 0 {
            break;
        }
    }
    // The remainder, less than a granule for each, is given granule by granule, to the largest
    // weights first.
    let mut order: Vec<usize> = (0..room.len()).collect();
    order.sort_by_key(|one| std::cmp::Reverse(weights[*one]));
    for one in order.into_iter().cycle().take(4 * room.len()) {
        let share = granule.min(room[one] - got[one]);
        if share > 0 && share <= left {
            got[one] += share;
            left -= share;
        }
    }
    got
}
