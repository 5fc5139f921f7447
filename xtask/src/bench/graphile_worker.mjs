// Prints SQL of the graphile-worker package that this file lies in, by running the package's own code:
//   schema    what its migrations run
//   one, ten  a pgbench script that gets jobs and completes them, one or ten a call
import { migrations } from "./dist/generated/sql.js";
import { batchGetJobs } from "./dist/sql/getJobs.js";
import { batchCompleteJobs } from "./dist/sql/completeJobs.js";

const schema = "graphile_worker";

// installSchema() and runMigration() of dist/migrate.js, which cannot be loaded without all that it imports.
function printSchema() {
  console.log(`create schema ${schema};
create table ${schema}.migrations(id int primary key, ts timestamptz default now() not null);
alter table ${schema}.migrations add column breaking boolean not null default false;`);
  for (const [file, text] of Object.entries(migrations)) {
    console.log(`begin;
insert into ${schema}.migrations (id, breaking) values (${parseInt(file, 10)}, ${text.startsWith("--! breaking")});
${text.replace(/:GRAPHILE_WORKER_SCHEMA\b/g, schema)}
;
commit;`);
  }
}

const options = {
  workerSchema: schema,
  escapedWorkerSchema: schema,
  resolvedPreset: { worker: { preparedStatements: true, useNodeTime: false } },
  logger: console,
};

// The text of the last query that the package sends.
async function sent(call) {
  let text;
  const client = {
    async query(query) {
      text = query.text;
      return { rows: [{ id: 1, identifier: "bench" }] };
    },
  };
  await call(Object.assign(async (use) => use(client), { withRetries: async (use) => use(client) }));
  return text;
}

async function printScript(n) {
  let get = await sent((client) => batchGetJobs(options, client, { bench() {} }, "bench", null, n));
  const jobs = Array.from({ length: n }, (_, id) => ({ id: String(id), job_queue_id: null }));
  let complete = await sent((client) => batchCompleteJobs(options, client, "bench", jobs));
  let ids = "id";
  if (n > 1) {
    // pgbench takes one row: the ids as an array. The statement itself stays as it is.
    const update = get.lastIndexOf(`update ${schema}._private_jobs`);
    get = `${get.slice(0, update).trimEnd()},
claimed (job_id) as (
${get.slice(update)}
)
select array_agg(job_id) as ids from claimed`;
    ids = "ids";
  }
  // An empty line would end nothing, but pgbench reads a script line by line.
  get = get.replace(/\n\s*\n/g, "\n").replaceAll("$1", ":worker").replaceAll("$2", ":tasks");
  console.log(`${get}\n\\gset\n${complete.replaceAll("$1", `:${ids}`)};`);
}

const [what] = process.argv.slice(2);
if (what === "schema") printSchema();
else await printScript(what === "ten" ? 10 : 1);
