//! The partition that is a window's own.

use crate::postgres::role;
use crate::postgres::segment::{Bounds, Segment};
use crate::postgres::spi;
use pgrx::pg_sys;

/// Whether a table is partitioned by ranges of one column alone.
const IS_RANGES: &str = "SELECT FROM pg_catalog.pg_partitioned_table p
    JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = $1 AND p.partstrat = 'r' AND p.partnatts = 1 AND a.attname = $2";

/// A partition, and whether the bounds of a window are its own: else it holds the window and more.
struct Found {
    partition: pg_sys::Oid,
    is_exact: bool,
}

/// The partition of a target, at any depth, whose bounds are exactly the window's. It is locked as writing to it does.
pub fn of_window(target: &Segment) -> Option<pg_sys::Oid> {
    let mut table = target.table.oid;
    while is_by_ranges(table, &target.column) {
        let found = find(table, &target.bounds)?;
        table = found.partition;
        unsafe { pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as i32) };
        if found.is_exact {
            return Some(table);
        }
    }
    None
}

fn is_by_ranges(table: pg_sys::Oid, column: &str) -> bool {
    !role::as_ledger(|| spi::latest(IS_RANGES, &[table.into(), column.into()], |_| ())).is_empty()
}

/// PostgreSQL sorts the ends of ranges; at each stands the partition that ends there, and the end before it is where
/// that one begins.
fn find(table: pg_sys::Oid, bounds: &Bounds) -> Option<Found> {
    unsafe {
        let open = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
        let partitions = &*pg_sys::RelationGetPartitionDesc(open, true);
        let found = partitions.boundinfo.as_ref().and_then(|ends| {
            let end = |i: usize| {
                let is_value =
                    **ends.kind.add(i) == pg_sys::PartitionRangeDatumKind::PARTITION_RANGE_DATUM_VALUE;
                is_value.then(|| **ends.datums.add(i))
            };
            (1..ends.ndatums as usize).find_map(|i| {
                let place = usize::try_from(*ends.indexes.add(i)).ok()?;
                let [since, until] = [end(i - 1), end(i)];
                let partition = *partitions.oids.add(place);
                let is_exact = since.zip(until).is_some_and(|(since, until)| bounds.are([since, until]));
                let holds = since.is_none_or(|since| bounds.begin_from(since))
                    && until.is_none_or(|until| bounds.end_by(until));
                (is_exact || holds).then_some(Found { partition, is_exact })
            })
        });
        pg_sys::table_close(open, pg_sys::NoLock as i32);
        found
    }
}
