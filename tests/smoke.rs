//! The extension is there and its server can be spoken to.

use pgrx_tests::Cluster;

#[test]
fn the_extension_is_created() {
    let database = Cluster::shared().database();
    let version: String =
        database.connect().one("SELECT extversion FROM pg_extension WHERE extname = 'pg_backfill'", &[]);
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}
