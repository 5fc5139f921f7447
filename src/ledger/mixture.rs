//! Whether slices of several code versions may stand side by side: the pipeline's `on_mixture`.
//!
//! Where it is `refuse`, a publication needs that a slice is of its class already, or that no other window has any slice
//! (BF007). So a mixture that exists can be made whole, and is never widened. What is published together is judged by how the
//! pipeline stands afterwards. Putting back what a plan replaced is exempt.
//!
//! What was published under another setting is looked at before COMMIT: it is refused where mixtures are refused by then
//! (40001). Whoever gives the pipeline that setting closes its gate, so that nobody commits between the two. Calls of people
//! hold `Key::Mixture` under any setting, and a change of it, in either direction, takes that exclusively: what was judged
//! by the setting of then, or was not looked at, has committed before the setting is another one. So does whoever divides a class.
//!
//! What was looked at must hold until COMMIT, so that a publication of such a pipeline takes `Key::Mixture`: shared where it
//! only adds to a class that is there, exclusively where it may bring the first slice of a class or take the last one away. It
//! looks again when it has the lock, and holds none while it waits for the other kind. It comes after the row of the lease
//! and before the rows of the target are written; whoever holds a gate exclusively does not ask for it. A transaction that publishes
//! several windows keeps the lock of the first, so that two of them may get a deadlock (40P01), as they may by their windows.

use crate::domain::calendar::Window;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::alike::Alike;
use crate::ledger::gate;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan;
use crate::ledger::version::UNKNOWN;
use crate::ledger::window::Reading;
use crate::postgres::{lock, lock::Key, quote, role, settings, spi};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What becomes of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMixture {
    Allow,
    Warn,
    Refuse,
}

impl OnMixture {
    pub const REFUSE: &str = "refuse";
    pub const NAMES: [&str; 3] = ["allow", "warn", Self::REFUSE];

    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "allow" => Some(Self::Allow),
            "warn" => Some(Self::Warn),
            Self::REFUSE => Some(Self::Refuse),
            _ => None,
        }
    }
}

thread_local! {
    /// What this transaction published while its pipeline took mixtures, by pipeline and token; a savepoint may have undone it
    /// since.
    static UNJUDGED: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
}

/// Called when a transaction ends.
pub fn forget() {
    UNJUDGED.take();
}

/// Refuses to commit what was published before its pipeline came to refuse mixtures (40001).
pub fn require_judged(token: i64, on_mixture: &str) -> Result<()> {
    let is_judged = || UNJUDGED.with_borrow(|open| open.iter().all(|(_, unjudged)| *unjudged != token));
    if on_mixture != OnMixture::REFUSE || is_judged() {
        return Ok(());
    }
    Err(Error::new(Code::Serialization, format!("the slice of token {token} was not judged"))
        .detail("on_mixture of its pipeline became 'refuse' while this transaction was open.")
        .hint("Roll back and repeat the transaction."))
}

/// Refuses to make a pipeline refuse mixtures in a transaction that has published to it without being judged (55000): it could
/// never commit.
pub fn require_none_open(pipeline: &Pipeline) -> Result<()> {
    let token =
        UNJUDGED.with_borrow(|open| open.iter().find(|(id, _)| *id == pipeline.id).map(|(_, token)| *token));
    let Some(token) = token else { return Ok(()) };
    Err(Error::new(Code::NotInState, "on_mixture cannot become 'refuse' in a transaction that has published")
        .detail(format!("It has published under token {token}, and nobody has judged that slice."))
        .hint("COMMIT first, and repeat the call."))
}

/// The slices that a pipeline ($1) has now, newest window first.
macro_rules! slices {
    () => {
        "(SELECT * FROM (
            SELECT DISTINCT ON (n.window_start) n.window_start, n.run_kind,
                   COALESCE(n.code_version, 'unknown') AS code_version
            FROM backfill.run_data n WHERE n.pipeline_id = $1 AND n.published_at IS NOT NULL
            ORDER BY n.window_start DESC, n.turn DESC
         ) c WHERE c.run_kind <> 'withdrawn')"
    };
}

/// Whether a slice is of a class: of one of its versions ($2).
macro_rules! is_same {
    () => {
        "(s.code_version = ANY ($2))"
    };
}

/// Whether the slice of the window, of the one before, of the one after or of the newest one is of the class, and whether the
/// window's own is not.
const NEAR: &str = concat!(
    "SELECT COALESCE(pg_catalog.bool_or(",
    is_same!(),
    "), false), COALESCE(pg_catalog.bool_or(NOT ",
    is_same!(),
    ") FILTER (WHERE s.window_start = $3), false)
    FROM (
        SELECT (SELECT o.window_start FROM backfill.run_data o
                WHERE o.pipeline_id = $1 AND o.window_start < $3 AND o.published_at IS NOT NULL
                ORDER BY o.window_start DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT o.window_start FROM backfill.run_data o
                WHERE o.pipeline_id = $1 AND o.window_start > $3 AND o.published_at IS NOT NULL
                ORDER BY o.window_start LIMIT 1)
        UNION ALL
        SELECT (SELECT o.window_start FROM backfill.run_data o
                WHERE o.pipeline_id = $1 AND o.window_start > $3 AND o.published_at IS NOT NULL
                ORDER BY o.window_start DESC LIMIT 1)
        UNION ALL
        SELECT $3
    ) w (window_start)
    CROSS JOIN LATERAL (
        SELECT n.window_start, n.run_kind, COALESCE(n.code_version, 'unknown') AS code_version
        FROM backfill.run_data n
        WHERE n.pipeline_id = $1 AND n.window_start = w.window_start AND n.published_at IS NOT NULL
        ORDER BY n.turn DESC LIMIT 1
    ) s
    WHERE s.run_kind <> 'withdrawn'"
);

/// The same of all windows, and whether another one has any slice.
const FAR: &str = concat!(
    "SELECT EXISTS (SELECT FROM ",
    slices!(),
    " s WHERE ",
    is_same!(),
    "), EXISTS (SELECT FROM ",
    slices!(),
    " s WHERE s.window_start <> $3)"
);

/// The versions of the class of one.
fn class_of(pipeline_id: i64, version: &str) -> Vec<String> {
    Alike::to(Reading::Deciding, pipeline_id, version.to_owned()).to_vec()
}

/// How the slice of a window would stand among those of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// Some window has one of its class.
    is_shared: bool,
    /// No other window has one.
    is_alone: bool,
    /// It takes the place of one of another class.
    replaces: bool,
}

impl Standing {
    /// Whether a slice of the class is where one is looked for first.
    fn is_near(pipeline_id: i64, version: &str, window: Instant) -> bool {
        let args = [pipeline_id.into(), class_of(pipeline_id, version).into(), window.into()];
        role::as_ledger(|| spi::latest(NEAR, &args, |row| row.at(1)))[0]
    }

    fn of(pipeline_id: i64, version: &str, window: Instant) -> Self {
        let args = [pipeline_id.into(), class_of(pipeline_id, version).into(), window.into()];
        role::as_ledger(|| {
            let both = |row: &spi::Row| (row.at::<bool>(1), row.at::<bool>(2));
            let (is_shared, replaces) = spi::latest(NEAR, &args, both)[0];
            if is_shared {
                return Self { is_shared, is_alone: false, replaces };
            }
            let (is_shared, has_others) = spi::latest(FAR, &args, both)[0];
            Self { is_shared, is_alone: !has_others, replaces }
        })
    }

    fn fits(self) -> bool {
        self.is_shared || self.is_alone
    }
}

/// Whether the slice of a window would not widen a mixture, as things stand.
pub fn fits(pipeline_id: i64, version: Option<&str>, window: Instant) -> bool {
    Standing::of(pipeline_id, version.unwrap_or(UNKNOWN), window).fits()
}

/// Before every window: what is true of one that has no slice.
pub const NO_WINDOW: Instant = crate::domain::timeline::EVER;

/// Like [`Standing::of`], and so until COMMIT.
fn settle(pipeline_id: i64, version: &str, window: Instant) -> Standing {
    let key = Key::Mixture { pipeline: pipeline_id };
    lock::shared_at_once(&[key]);
    let found = Standing::of(pipeline_id, version, window);
    if found.is_shared && !found.replaces || !found.fits() {
        return found;
    }
    lock::release_shared(key);
    lock::exclusive(key);
    Standing::of(pipeline_id, version, window)
}

/// A slice that a run is about to publish.
pub struct Publication {
    token: i64,
    pipeline_id: i64,
    window: Instant,
    version: String,
    on_mixture: OnMixture,
    /// This transaction has passed its fence.
    pub is_fenced: bool,
}

/// Nothing is published by what is staged, and nothing new by the end of a run that has published before.
const PENDING: &str =
    "SELECT r.pipeline_id, r.window_start, COALESCE($2, r.code_version, 'unknown'), p.on_mixture,
        COALESCE(r.fence_xid = pg_catalog.pg_current_xact_id_if_assigned(), false)
    FROM backfill.run_data r JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
    WHERE r.token = $1 AND NOT r.together AND r.run_kind NOT IN ('reverted', 'withdrawn', 'verify')
      AND (r.published_at IS NULL OR $2 IS NOT NULL)";

impl Publication {
    /// What is to be judged of a run that publishes rows of a version, which is the run's own where none is given.
    pub fn of(token: i64, version: Option<&str>) -> Option<Self> {
        let decode = |row: &spi::Row| Self {
            token,
            pipeline_id: row.at(1),
            window: row.at(2),
            version: row.at(3),
            on_mixture: OnMixture::parse(&row.at::<String>(4)).expect("a CHECK lists them"),
            is_fenced: row.at(5) && gate::noted(token),
        };
        let found = role::as_ledger(|| spi::latest(PENDING, &[token.into(), version.into()], decode));
        let publication = found.into_iter().next()?;
        if !publication.is_refusable() {
            UNJUDGED.with_borrow_mut(|open| open.push((publication.pipeline_id, token)));
        }
        Some(publication)
    }

    pub fn is_refusable(&self) -> bool {
        self.on_mixture == OnMixture::Refuse
    }

    /// Refuses it where that would begin or widen a mixture (BF007), or says so. The row of the lease is locked by now.
    pub fn admit(&self) -> Result<()> {
        let fits = match self.on_mixture {
            OnMixture::Allow => true,
            OnMixture::Warn => fits(self.pipeline_id, Some(&self.version), self.window),
            OnMixture::Refuse => settle(self.pipeline_id, &self.version, self.window).fits(),
        };
        if fits {
            return Ok(());
        }
        let pipeline = Pipeline::by_id(self.pipeline_id);
        let window = pipeline.key_of(self.window);
        if self.is_refusable() {
            let what = format!("window {window} under token {}", self.token);
            return Err(refused(&pipeline, &what, &self.version, &described(&pipeline)));
        }
        warn(&pipeline, &format!("window {window} is of code version {}", self.version));
        Ok(())
    }
}

fn warn(pipeline: &Pipeline, what: &str) {
    pgrx::warning!(
        "the slices of pipeline \"{}\" are of several code versions: {what}, others of {}",
        pipeline.name,
        described(pipeline)
    );
}

/// How many versions a sentence names.
const NAMED: usize = 5;

const VERSIONS: &str = concat!(
    "SELECT s.code_version, pg_catalog.count(*), pg_catalog.min(s.window_start), pg_catalog.max(s.window_start) FROM ",
    slices!(),
    " s WHERE NOT s.window_start = ANY ($2) GROUP BY s.code_version ORDER BY 4 DESC, 1"
);

/// The versions of the slices that there are, with their windows.
fn described(pipeline: &Pipeline) -> String {
    described_beside(pipeline, &[])
}

/// Those of the slices of other windows.
fn described_beside(pipeline: &Pipeline, windows: &[Instant]) -> String {
    let mut found = role::as_ledger(|| {
        spi::latest_bulk(VERSIONS, &[pipeline.id.into(), windows.to_vec().into()], |row| {
            let (first, last) = (pipeline.key_of(row.at(3)), pipeline.key_of(row.at(4)));
            let windows = match row.at::<i64>(2) {
                1 => format!("window {first}"),
                count => format!("{count} windows from {first} to {last}"),
            };
            format!("{} ({windows})", row.at::<String>(1))
        })
    });
    if let Some(more) = found.len().checked_sub(NAMED).filter(|more| *more > 0) {
        found.truncate(NAMED);
        found.push(format!("{more} more"));
    }
    found.join(", ")
}

/// What a person can do instead.
pub fn ways_forward(pipeline: &Pipeline) -> String {
    let name = quote::literal(&pipeline.name);
    let at_once = match pipeline.target {
        Some(_) => format!(
            "a plan with publish => 'together' and the new code exchanges all windows at once, and so does backfill_plan({name}, NULL, NULL, 'why', mode => 'outdated', publish => 'together') where the pipeline runs it already; "
        ),
        None => String::new(),
    };
    format!(
        "Ways forward: {at_once}version_compatible({name}, 'old', 'new', 'why') says that both mean the same; pipeline_alter({name}, '{{\"on_mixture\": \"warn\"}}') lets them stand side by side."
    )
}

fn refused(pipeline: &Pipeline, what: &str, version: &str, others: &str) -> Error {
    let beside = match others {
        "" => String::new(),
        others => format!("; the slices beside it are of {others}"),
    };
    Error::new(Code::Mixed, format!("{what} would mix code versions in pipeline \"{}\"", pipeline.name))
        .detail(format!("It is of version {version}{beside}. on_mixture is 'refuse'."))
        .hint(ways_forward(pipeline))
}

/// What brings several slices at once.
#[derive(Debug, Clone, Copy)]
pub enum Bringing {
    Adoption,
    Plan(i64),
}

impl Bringing {
    fn shown(self) -> String {
        match self {
            Self::Adoption => "what is adopted".to_owned(),
            Self::Plan(plan_id) => format!("plan {plan_id}"),
        }
    }

    /// How it would take in the windows whose slices it does not fit.
    fn advice(self) -> String {
        match self {
            Self::Adoption => String::new(),
            Self::Plan(plan_id) => format!(
                "Of another version are windows that it leaves out: SELECT backfill_extend({plan_id}) adds to an approved plan what became due since, window_unlock() and window_unskip() free what a person closed. "
            ),
        }
    }
}

/// The classes of all slices, with whether any is not of some windows ($2); and those of some versions ($3), with NULL.
const OUTSIDE: &str = concat!(
    "SELECT COALESCE(c.class, s.code_version), pg_catalog.bool_or(NOT EXISTS (
         SELECT FROM pg_catalog.unnest($2) w WHERE w = s.window_start)) FROM ",
    slices!(),
    " s LEFT JOIN backfill.version_class_data c ON c.pipeline_id = $1 AND c.code_version = s.code_version
    GROUP BY 1
    UNION ALL
    SELECT DISTINCT COALESCE(c.class, v.code_version), NULL::bool FROM pg_catalog.unnest($3) v (code_version)
    LEFT JOIN backfill.version_class_data c ON c.pipeline_id = $1 AND c.code_version = v.code_version"
);

const SETTING: &str = "SELECT on_mixture FROM backfill.pipeline_data WHERE pipeline_id = $1";

fn setting(pipeline: &Pipeline) -> OnMixture {
    let found = role::as_ledger(|| {
        spi::latest(SETTING, &[pipeline.id.into()], |row| OnMixture::parse(&row.at::<String>(1)))
    });
    found.into_iter().flatten().next().expect("a CHECK lists them")
}

/// Whether windows that are published at once, of these versions, bring no class, or leave one only.
fn fit_together(pipeline: &Pipeline, windows: &[Instant], versions: &BTreeSet<String>) -> bool {
    let args = [
        pipeline.id.into(),
        windows.to_vec().into(),
        versions.iter().cloned().collect::<Vec<String>>().into(),
    ];
    let classes =
        role::as_ledger(|| spi::latest_bulk(OUTSIDE, &args, |row| (row.at::<String>(1), row.get::<bool>(2))));
    let of = |counts: fn(Option<bool>) -> bool| -> BTreeSet<&String> {
        classes.iter().filter(|(_, stays)| counts(*stays)).map(|(class, _)| class).collect()
    };
    let (staying, own) = (of(|stays| stays == Some(true)), of(|stays| stays.is_none()));
    match staying.is_empty() {
        true => own.len() <= 1,
        false => own.is_subset(&of(|stays| stays.is_some())),
    }
}

/// Judges windows that are published, adopted or planned at once (BF007). `holds` keeps what is found until COMMIT.
fn judge(
    pipeline: &Pipeline,
    what: Bringing,
    windows: &[Instant],
    versions: impl IntoIterator<Item = Option<String>>,
    holds: bool,
) -> Result<()> {
    if holds {
        exclude(pipeline);
    }
    let on_mixture = setting(pipeline);
    if on_mixture == OnMixture::Allow {
        return Ok(());
    }
    let unknown = || UNKNOWN.to_owned();
    let versions: BTreeSet<String> =
        versions.into_iter().map(|version| version.unwrap_or_else(unknown)).collect();
    if fit_together(pipeline, windows, &versions) {
        return Ok(());
    }
    let shown = versions.into_iter().collect::<Vec<_>>().join(", ");
    if on_mixture == OnMixture::Refuse {
        let error = refused(pipeline, &what.shown(), &shown, &described_beside(pipeline, windows));
        return Err(error.hint(what.advice() + &ways_forward(pipeline)));
    }
    warn(pipeline, &format!("{} is of code version {shown}", what.shown()));
    Ok(())
}

/// For a call that publishes all of these windows, or adopts them.
pub fn admit_all(
    pipeline: &Pipeline,
    what: Bringing,
    windows: &[Instant],
    versions: impl IntoIterator<Item = Option<String>>,
) -> Result<()> {
    judge(pipeline, what, windows, versions, true)
}

/// For a call of a person that brings slices, or takes them away: nobody else publishes before it has committed, where
/// mixtures are refused, and nobody makes them so where they are not. Others wait for the decisions that it holds, so that it
/// does not wait for workers for long (55P03).
pub fn exclude(pipeline: &Pipeline) {
    let key = Key::Mixture { pipeline: pipeline.id };
    settings::with_patience(|| {
        role::as_ledger(|| {
            lock::shared_at_once(&[key]);
            if setting(pipeline) == OnMixture::Refuse {
                lock::release_shared(key);
                lock::exclusive(key);
            }
        });
    });
}

/// For a call of a person that changes what is refused: all that was judged, and all that people brought without being judged,
/// is committed. It comes before the gate in the order of locks (55000), and waits for nobody for long (55P03).
pub fn exclude_all(pipeline: &Pipeline, call: &str) -> Result<()> {
    gate::require_none_closed(call)?;
    let keys = [Key::Decisions { pipeline: pipeline.id }, Key::Mixture { pipeline: pipeline.id }];
    settings::with_patience(|| role::as_ledger(|| keys.into_iter().for_each(lock::exclusive)));
    Ok(())
}

/// Whether any slice is of a class (its versions are $2), how many slices there are, and the window of one.
const COUNTS: &str = concat!(
    "SELECT COALESCE(pg_catalog.bool_or(",
    is_same!(),
    "), false), pg_catalog.count(*), pg_catalog.min(s.window_start) FROM ",
    slices!(),
    " s"
);

/// Which windows may be built by a version by themselves, as things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    All,
    /// It has the only slice, which is of another class.
    Only(Instant),
    None,
}

impl Open {
    pub fn to(pipeline_id: i64, version: Option<&str>) -> Self {
        let version = version.unwrap_or(UNKNOWN);
        if Standing::is_near(pipeline_id, version, NO_WINDOW) {
            return Self::All;
        }
        let args = [pipeline_id.into(), class_of(pipeline_id, version).into()];
        let found = role::as_ledger(|| {
            spi::latest_bulk(COUNTS, &args, |row| {
                (row.at::<bool>(1), row.at::<i64>(2), row.get::<Instant>(3))
            })
        });
        match found[0] {
            (true, ..) | (_, 0, _) => Self::All,
            (false, 1, Some(only)) => Self::Only(only),
            _ => Self::None,
        }
    }

    pub fn takes(self, window: Instant) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only == window,
            Self::None => false,
        }
    }
}

/// Judges a plan that is to be approved. One that publishes each window by itself must fit whichever comes first: after that
/// its class is there. Without a version its windows are judged when they are claimed.
pub fn admit_plan(
    pipeline: &Pipeline,
    plan_id: i64,
    together: bool,
    version: Option<&str>,
    windows: &[Window],
) -> Result<()> {
    let Some(version) = version else { return Ok(()) };
    let what = Bringing::Plan(plan_id);
    let starts: Vec<Instant> = windows.iter().map(|window| window.start).collect();
    let on_mixture = setting(pipeline);
    if together || on_mixture != OnMixture::Refuse {
        return judge(pipeline, what, &starts, [Some(version.to_owned())], false);
    }
    // Where only one window is open, nothing else may be built beside it before.
    let open = Open::to(pipeline.id, Some(version));
    let fits = open == Open::All || starts.len() == 1 && open.takes(starts[0]);
    if fits { Ok(()) } else { Err(refused(pipeline, &what.shown(), version, &described(pipeline))) }
}

const CLASSES: &str = concat!(
    "SELECT pg_catalog.count(DISTINCT COALESCE(c.class, s.code_version)) FROM ",
    slices!(),
    " s LEFT JOIN backfill.version_class_data c ON c.pipeline_id = $1 AND c.code_version = s.code_version"
);

/// How many classes the slices are of.
fn classes(pipeline: &Pipeline) -> i64 {
    role::as_ledger(|| spi::latest_bulk(CLASSES, &[pipeline.id.into()], |row| row.at(1)))[0]
}

/// Warns after `what`, which is not refused for it, where the slices are of several classes now; answers whether they are.
pub fn warn_if_mixed(pipeline: &Pipeline, what: &str) -> bool {
    let is_mixed = classes(pipeline) > 1;
    if is_mixed && setting(pipeline) != OnMixture::Allow {
        warn(pipeline, what);
    }
    is_mixed
}

/// Keeps with a plan that was reverted that the slices are of several versions now.
pub fn note_reverted(pipeline: &Pipeline, plan_id: i64) {
    if warn_if_mixed(pipeline, &format!("plan {plan_id} was reverted")) {
        plan::note(plan_id, "mixed", Some(&format!("the slices are of {}", described(pipeline))));
    }
}

/// The only versions that an attempt may have where a mixture is refused; `None` where any may.
pub fn wanted(pipeline: &Pipeline) -> Option<String> {
    (pipeline.on_mixture == OnMixture::Refuse).then(|| described(pipeline)).filter(|found| !found.is_empty())
}

/// Why windows of a version are not handed out.
pub fn obstacle(pipeline: &Pipeline, version: &str) -> String {
    format!("version {version} would mix with {}, and on_mixture is 'refuse'", described(pipeline))
}
