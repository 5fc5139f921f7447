//! What may start by itself is computed from the clock and the ledger: whatever happened to the server, it is the same.

use crate::dump::{dump, restored};
use crate::support::{Calls, Lease, define};
use pgrx_tests::{Cluster, Session, wait_until};

/// Two pipelines of a hundred windows, none of which falls due while the test runs.
const PIPELINES: [(&str, &str); 2] = [
    ("hourly", "'1 hour', (now() - interval '100 hours 30 minutes')::timestamptz(0)"),
    (
        "daily",
        "'1 day', (now() - interval '100 days 12 hours')::timestamptz(0), time_zone => 'America/New_York'",
    ),
];
const RULE: &str = "backlog => 3, catchup => 2, max_active => 99";

/// Defines them as if it were `now`, so that a script that runs again later says the same.
fn define_all(session: &mut Session, now: &str) {
    for (name, first) in PIPELINES {
        define(session, name, &first.replace("now()", &format!("timestamptz '{now}'")), RULE);
    }
}

/// What a pipeline shows and what it hands out.
#[derive(Debug, PartialEq, Eq)]
struct Sight {
    /// Every window with its state, from the oldest to the newest.
    windows: Vec<String>,
    missed: Vec<String>,
    handed_out: Vec<Lease>,
}

/// Looks at a pipeline, and takes back what it was handed out.
fn look(session: &mut Session, pipeline: &str) -> Sight {
    let windows = "SELECT window_key, state FROM pipeline_windows($1, NULL, NULL) ORDER BY window_start";
    let windows = session.lines(&windows.replace("$1", &format!("'{pipeline}'")));
    let missed = format!("SELECT windows, oldest, newest FROM backfill.missed WHERE pipeline = '{pipeline}'");
    let missed = session.lines(&missed);
    session.run("BEGIN");
    let mut handed_out = session.all_of(pipeline);
    session.run("ROLLBACK");
    // No token comes twice.
    handed_out.iter_mut().for_each(|lease| lease.token = 0);
    Sight { windows, missed, handed_out }
}

fn look_at_all(session: &mut Session) -> Vec<Sight> {
    PIPELINES.map(|(name, _)| look(session, name)).into()
}

impl Sight {
    /// The windows in one of the states, counted from the newest, which is 1.
    fn places(&self, state: &str) -> Vec<usize> {
        let newest_first = self.windows.iter().rev().zip(1..);
        newest_first.filter(|(window, _)| window.ends_with(&format!("|{state}"))).map(|(_, n)| n).collect()
    }
}

/// These places may start, are handed out, and no other; everything else is missed, and listed so.
#[track_caller]
fn assert_may_start(session: &mut Session, places: &[usize]) {
    for sight in look_at_all(session) {
        assert_eq!(sight.windows.len(), 100);
        assert_eq!(sight.places("eligible"), places);
        let missed = 100 - places.len();
        assert_eq!(sight.places("missed").len(), missed);
        assert!(sight.missed[0].starts_with(&format!("{missed}|")), "{:?}", sight.missed);
        assert_eq!(sight.handed_out.len(), places.len());
        for (lease, place) in sight.handed_out.iter().zip(places.iter().rev()) {
            assert!(sight.windows[100 - place].starts_with(&format!("{}|", lease.key)), "{lease:?}");
        }
    }
}

/// Two ways to become active (definition, resume) and all that can happen to a server afterwards.
#[test]
fn the_same_windows_may_start_whatever_happened_before() {
    let primary = Cluster::private(&["fsync = off"]);
    let database = primary.database();
    let mut session = database.connect();

    // Defined with an old start: the catchup windows and nothing else.
    let now: String = session.one("SELECT now()::text", &[]);
    define_all(&mut session, &now);
    assert_may_start(&mut session, &[1, 2]);
    let defined = look_at_all(&mut session);
    // The same script on the next deployment moves nothing.
    define_all(&mut session, &now);
    assert_eq!(look_at_all(&mut session), defined);

    // Days without workers: the backlog, and the catchup windows just before it became active.
    session.active_for("hourly", "50 hours");
    session.active_for("daily", "50 days");
    assert_may_start(&mut session, &[1, 2, 3, 51, 52]);

    // While it is paused the same windows are shown, and none is handed out. A resume is the moment from which it counts
    // as active: what must hold is the rule, and so the same as after a definition now.
    let before = look_at_all(&mut session);
    for ((name, _), before) in PIPELINES.iter().zip(&before) {
        session.run(&format!("SELECT pipeline_pause('{name}', 'test')"));
        let paused = look(&mut session, name);
        assert_eq!((&paused.windows, &paused.handed_out[..]), (&before.windows, &[][..]));
        let missed: i64 = session.one("SELECT missed FROM pipeline_resume($1)", &[name]);
        assert_eq!(missed, 98);
    }
    assert_eq!(look_at_all(&mut session), defined);

    // A ledger with something in it: among the newest, one window is done, one failed, one skipped.
    session.active_for("hourly", "50 hours");
    session.active_for("daily", "50 days");
    for (name, _) in PIPELINES {
        let leases = session.try_claim(&format!("3, pipelines => ARRAY['{name}']")).unwrap();
        session.call("finish", leases[0].token);
        session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", leases[1].token));
        session.run(&format!(
            "SELECT backfill_release({}), window_skip('{name}', window_start::text, window_end::text, 'test')
             FROM pipeline_windows('{name}') WHERE window_key = '{}'",
            leases[2].token, leases[2].key
        ));
    }
    let kept = look_at_all(&mut session);
    for sight in &kept {
        assert_eq!((sight.places("eligible"), sight.places("missed").len()), (vec![1, 2], 95));
        assert_eq!((sight.places("done"), sight.places("failed")), (vec![52], vec![51]));
        assert_eq!(sight.places("skipped"), [3]);
        assert_eq!(sight.handed_out.len(), 2);
    }

    // Restarted, stopped at once, and with a backend killed.
    primary.restart();
    assert_eq!(look_at_all(&mut database.connect()), kept, "restarted");
    primary.crash();
    primary.restart();
    assert_eq!(look_at_all(&mut database.connect()), kept, "crashed");
    primary.kill_backend(database.connect().pid());
    let mut session = database.connect();
    assert_eq!(look_at_all(&mut session), kept, "killed");

    // The extension was never released in another version: this update has nothing to do, and must do nothing.
    session.run("ALTER EXTENSION pg_backfill UPDATE");
    assert_eq!(look_at_all(&mut session), kept, "updated");

    let copy = restored(&dump(&database, &[]));
    assert_eq!(look_at_all(&mut copy.connect()), kept, "restored on another server");

    let standby = primary.standby();
    let mut session = standby.connect(database.name());
    wait_until("the standby has everything", || {
        session.try_one::<i64>("SELECT count(*) FROM backfill.runs", &[]).is_ok_and(|runs| runs == 6)
    });
    primary.crash();
    assert!(session.one::<bool>("SELECT pg_promote()", &[]));
    assert_eq!(look_at_all(&mut session), kept, "failed over");

    // And there it goes on: what may start is started, and nothing older follows.
    for (name, _) in PIPELINES {
        assert_eq!(session.all_of(name).len(), 2);
        assert_eq!(session.all_of(name), []);
        let after = look(&mut session, name);
        assert_eq!((after.places("leased"), after.places("missed").len()), (vec![1, 2], 95));
    }
}
