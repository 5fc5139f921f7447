CREATE TYPE backfill.plan_summary AS (
    plan_id     bigint,
    windows     bigint,
    range_start timestamptz,
    range_end   timestamptz,
    estimate    jsonb,
    declined    jsonb,
    pipeline    text,
    state       text
);
COMMENT ON TYPE backfill.plan_summary IS 'What backfill_plan answers. plan_id is NULL where no window was left and nothing was stored; durations of the estimate are in seconds, null where unknown.';

CREATE TYPE backfill.progress AS (
    plan_id   bigint,
    pipeline  text,
    state     text,
    windows   bigint,
    done      bigint,
    failed    bigint,
    running   bigint,
    waiting   bigint,
    skipped   bigint,
    percent   double precision,
    rate      double precision,
    eta       timestamptz,
    remaining interval,
    bar       text
);
COMMENT ON TYPE backfill.progress IS 'How far a plan has come. percent counts the windows that will not move any more (done, failed, skipped); rate is windows done an hour, lately; eta and remaining are NULL where nothing runs or nothing is known; bar is a line of at most 80 columns.';

CREATE FUNCTION backfill_plan(
    pipeline           text,
    since              backfill.bound,
    until              backfill.bound,
    reason             text,
    mode               text    DEFAULT 'all',
    keys               text[]  DEFAULT NULL,
    ordering           text    DEFAULT 'oldest_first',
    concurrency        int     DEFAULT NULL,
    pool               text    DEFAULT 'backfill',
    priority           int     DEFAULT 0,
    canary             int     DEFAULT NULL,
    code_version       text    DEFAULT NULL,
    query              text    DEFAULT NULL,
    publish            text    DEFAULT 'each',
    effects            boolean DEFAULT false,
    on_failure         text    DEFAULT 'continue',
    cascade            boolean DEFAULT false,
    params             jsonb   DEFAULT NULL,
    override_retention text    DEFAULT NULL,
    allow_shrink       text    DEFAULT NULL,
    expect             bigint  DEFAULT NULL
) RETURNS backfill.plan_summary
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'backfill_plan_wrapper';
REVOKE ALL ON FUNCTION backfill_plan(text, backfill.bound, backfill.bound, text, text, text[], text, int, text, int, int, text, text, text, boolean, text, boolean, jsonb, text, text, bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_plan(text, backfill.bound, backfill.bound, text, text, text[], text, int, text, int, int, text, text, text, boolean, text, boolean, jsonb, text, text, bigint) IS
'Proposes a backfill of the due windows between since and until (exclusive; NULL is the first window, and the last complete one), priced and frozen; nothing runs before backfill_approve. expect approves at once when it equals the number of windows (BF003). keys names windows between since and until, or anywhere without the two. A plan has 10 million windows at most (54000). canary lets only so many windows run before the plan waits for backfill_resume; on_failure => ''stop'' does after a window has failed for good. A pipeline with depends_on_past takes ordering sequential only. A draft can be approved for 7 days. query is the plan''s own, run as the pipeline''s owner; with publish => ''together'' the windows are staged, and backfill_publish() exchanges all slices at once and makes a query or code_version of the plan''s own the pipeline''s; both are for the owner. Not built yet, and refused (0A000): mode cascade; publish together is refused with ordering sequential and without a target. Errors: BF012 for a bound off the grid with the nearest ones in the HINT, BF010 for a query that on_impure refuses, with expect those of backfill_approve, 22023, 42704, 42501, 25006.';

CREATE FUNCTION backfill_explain(plan_id bigint) RETURNS SETOF text
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_explain_wrapper';
COMMENT ON FUNCTION backfill_explain(bigint) IS
'The plan as a page that answers five questions in order: how many windows, whether they depend on each other, what effects fire, who reads the target meanwhile, whether the source can still answer; and, once the plan is over, its estimate beside what it took. Errors: 42704, 42501.';

CREATE FUNCTION backfill_approve(plan_id bigint, windows bigint) RETURNS text
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_approve_wrapper';
REVOKE ALL ON FUNCTION backfill_approve(bigint, bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_approve(bigint, bigint) IS
'Approves a draft by repeating its number of windows. From then on the plan owns them. Errors: BF003 for another number, BF004 with what moved since the draft was made, BF007 where the plan would mix code versions and on_mixture is refuse, BF009 where another plan owns a window by now, 55000 for a plan that is no draft, 42704, 42501, 25006.';

CREATE FUNCTION backfill_cancel(plan_id bigint, reason text, OUT windows_freed bigint, OUT leases_revoked bigint, OUT still_writing int[])
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_cancel_wrapper';
REVOKE ALL ON FUNCTION backfill_cancel(bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_cancel(bigint, text) IS
'Cancels a plan in time that does not depend on its size, waiting for no worker. Its windows can be planned again at once; its leases are revoked, and a transaction that writes under one cannot commit (BF002). still_writing lists the backends that hold such a transaction open. Errors: 55000 for a plan that has ended, 22023 without a reason, 42704, 42501, 25006.';

CREATE FUNCTION backfill_pause(plan_id bigint, reason text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_pause_wrapper';
REVOKE ALL ON FUNCTION backfill_pause(bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_pause(bigint, text) IS
'Stops the plan from the next claim on; leases that are held go on. Answers paused or unchanged. Errors: 55000 for a draft, a cancelled or a reverted plan, 22023 without a reason, 42704, 42501, 25006.';

CREATE FUNCTION backfill_resume(plan_id bigint) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_resume_wrapper';
REVOKE ALL ON FUNCTION backfill_resume(bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_resume(bigint) IS
'Lets a plan go on that was paused by a person, by its canary or by a failure (on_failure => ''stop''). Answers resumed or unchanged. Errors: 55000 for a draft, a cancelled or a reverted plan, 42704, 42501, 25006.';

CREATE FUNCTION backfill_retry(plan_id bigint) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_retry_wrapper';
REVOKE ALL ON FUNCTION backfill_retry(bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_retry(bigint) IS
'Runs the windows again that failed or were refused in the plan, exactly those, with a new count of attempts, and answers how many. The plan owns them again. Errors: BF009 where another plan owns one or it is leased, 55000 for a draft, a cancelled or a reverted plan, or one whose pool was dropped, 42704, 42501, 25006.';

CREATE FUNCTION backfill_adjust(plan_id bigint, concurrency int DEFAULT NULL, priority int DEFAULT NULL) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_adjust_wrapper';
REVOKE ALL ON FUNCTION backfill_adjust(bigint, int, int) FROM PUBLIC;
COMMENT ON FUNCTION backfill_adjust(bigint, int, int) IS
'Changes how many windows of the plan run at once (1 to 10000) and its priority, from the next claim on; NULL leaves one as it is. A lower concurrency ends nothing. Answers what holds now, or unchanged. Errors: 22023, 55000 for a draft, a cancelled or a reverted plan, 42704, 42501, 25006.';

CREATE FUNCTION backfill_extend(plan_id bigint) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_extend_wrapper';
REVOKE ALL ON FUNCTION backfill_extend(bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_extend(bigint) IS
'Appends to the plan what its request selects now and did not then, windows that became due since above all, and answers how many. Errors: 54000 for more than 10 million windows, BF004 where the code version moved, 55000 for a draft, a cancelled or a reverted plan, or one whose pool was dropped, 42704, 42501, 25006.';

CREATE FUNCTION backfill_progress(plan_id bigint) RETURNS backfill.progress
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_progress_wrapper';
COMMENT ON FUNCTION backfill_progress(bigint) IS
'How far a plan has come: its windows by how they stand, in windows an hour, when it will end if it goes on like this, and all of that as a line for \watch. Errors: 42704, 42501.';

CREATE FUNCTION backfill.plan_actual(plan_id bigint, whole boolean) RETURNS jsonb
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'plan_actual_wrapper';
COMMENT ON FUNCTION backfill.plan_actual(bigint, boolean) IS
'What the plan took, under the keys of its estimate, and how far off that was where the plan was run as a whole. For backfill.plans; NULL for a plan that the caller may not read.';

CREATE FUNCTION backfill.plan_eta(plan_id bigint, windows_left bigint) RETURNS timestamptz
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'plan_eta_wrapper';
COMMENT ON FUNCTION backfill.plan_eta(bigint, bigint) IS
'When the plan will end that has so many windows left, if it goes on like this. For backfill.plans; NULL for a plan that the caller may not read.';
