// How much clients may do, and which addresses may not connect.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { BanInfo, QuotaInfo } from "../api/schema";
import { ago, duration, short, time } from "../format";
import type { PageProps } from "../pages";
import { useMay } from "../session";
import { Badge, Empty, Head, Name, Search } from "../ui/basics";
import { Action } from "../ui/dialog";
import { Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { LIMITS, partsOf, QuotaForm, shownLimit } from "./quota_form";

/** Who a quota is for: a part without a name counts for each one that has no quota of its own. */
function Entity({ text }: { text: string }): JSX.Element {
  return (
    <span>
      {partsOf(text).map(([part, name], at) => (
        <span key={part}>
          {at > 0 && " "}<Badge>{part}</Badge> {name === "" ? <i class="faint" title="Each one that has no quota of its own">each other one</i> : <Name text={name} most={60} />}
        </span>
      ))}
    </span>
  );
}

function limitsText(row: QuotaInfo): string {
  const known = LIMITS.filter((limit) => row.limits[limit.name] !== undefined);
  return known.map((limit) => `${limit.title.toLowerCase()} ${shownLimit(limit, row.limits[limit.name])}`).join(", ");
}

function Quotas({ search }: { search: string }): JSX.Element {
  const [adding, setAdding] = useState(false);
  const [changed, setChanged] = useState<QuotaInfo>();
  const [removed, setRemoved] = useState<QuotaInfo>();
  const pages = usePages("GET /quotas", { query: { search } });
  const may = useMay("admin");
  return (
    <>
      {may && (
        <div class="row">
          <button type="button" class="primary" onClick={() => setAdding(true)}>New quota</button>
        </div>
      )}
      <Table
        label="Quotas"
        pages={pages}
        keyOf={(row) => row.entity}
        {...(may ? { open: setChanged } : {})}
        columns={[
          { title: "Who", cell: (row) => <Entity text={row.entity} /> },
          { title: "At most", cell: (row) => <span title={limitsText(row)}>{limitsText(row)}</span>, grow: true },
          ...(may
            ? [{
                title: "",
                wide: true,
                cell: (row: QuotaInfo) => (
                  <button type="button" class="small" onClick={() => setRemoved(row)}>Remove…</button>
                ),
              }]
            : []),
        ]}
        empty={
          <Empty title={search ? "No quota is like that" : "There is no quota"}>
            Everybody may do as much as the broker can. Set a bound for each user, for example:
            <pre>onelog quota set user connections=20 publish_bytes=1MB</pre>
          </Empty>
        }
      />
      {adding && <QuotaForm onClose={() => setAdding(false)} onDone={pages.again} />}
      {changed && (
        <QuotaForm
          quota={changed}
          onClose={() => setChanged(undefined)}
          onDone={pages.again}
          onRemove={() => { setRemoved(changed); setChanged(undefined); }}
        />
      )}
      {removed && (
        <Action
          title={`Remove the quota of ${short(removed.entity, 60)}`}
          verb="Remove"
          danger
          act={async () => {
            await call("DELETE /quotas/{entity}", { names: [removed.entity] });
            return "The quota is removed.";
          }}
          onClose={() => setRemoved(undefined)}
          onDone={pages.again}
        >
          <p>At once, open connections too have only the bounds of the next quota that fits them, if there is one.</p>
        </Action>
      )}
    </>
  );
}

function Bans(): JSX.Element {
  const [lifted, setLifted] = useState<BanInfo>();
  const pages = usePages("GET /bans");
  const may = useMay("operator");
  return (
    <>
      <div class="row">
        <button type="button" onClick={pages.again}>Refresh</button>
      </div>
      <Table
        label="Bans"
        pages={pages}
        keyOf={(row) => row.address}
        columns={[
          { title: "Address", cell: (row) => <Name text={row.address} />, grow: true },
          { title: "Since", cell: (row) => <span title={time(row.since_ms)}>{ago(row.since_ms)}</span>, wide: true },
          { title: "Ends in", cell: (row) => <span title={time(row.until_ms)}>{duration(row.until_ms - Date.now())}</span> },
          ...(may
            ? [{
                title: "",
                cell: (row: BanInfo) => (
                  <button type="button" class="small" onClick={() => setLifted(row)}>Lift…</button>
                ),
              }]
            : []),
        ]}
        empty={
          <Empty title="No address is banned">
            An address is kept out for a while when its logins fail again and again. The keys of <code>security.bans</code> on
            the page Nodes say after how many, and for how long.
          </Empty>
        }
      />
      {lifted && (
        <Action
          title={`Let ${short(lifted.address, 60)} connect again`}
          verb="Lift the ban"
          act={async () => {
            await call("DELETE /bans/{address}", { names: [lifted.address] });
            return "The address may connect again.";
          }}
          onClose={() => setLifted(undefined)}
          onDone={pages.again}
        >
          <p>Logins from there failed again and again. Ask its owner why, before they go on.</p>
        </Action>
      )}
    </>
  );
}

const TABS = [["quotas", "Quotas"], ["bans", "Bans"]] as const;

export default function QuotasPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const isBans = query.tab === "bans";
  return (
    <>
      <Head title="Quotas and bans" about="How much clients may do, and which addresses are kept out. They hold for every protocol.">
        {!isBans && <Search value={search} onChange={setSearch} label="Search quotas" />}
      </Head>
      <Tabs page="quotas" current={isBans ? "bans" : "quotas"} tabs={TABS} />
      {isBans ? <Bans /> : <Quotas search={settled} />}
    </>
  );
}
