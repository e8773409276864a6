// Who may come in and do what: users with their roles, access rules, tokens for programs.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { TokenInfo, UserInfo } from "../api/schema";
import { ago, short, time } from "../format";
import type { PageProps } from "../pages";
import { useMay } from "../session";
import { Badge, Empty, Head, Name, Search } from "../ui/basics";
import { Action } from "../ui/dialog";
import { Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { ChangeUser, NewToken, NewUser } from "./access_forms";
import { Rules, UserGroups } from "./access_rules";

function Users({ search }: { search: string }): JSX.Element {
  const [adding, setAdding] = useState(false);
  const [changed, setChanged] = useState<UserInfo>();
  const [removed, setRemoved] = useState<UserInfo>();
  const pages = usePages("GET /users", { query: { search } });
  return (
    <>
      <div class="row">
        <button type="button" class="primary" onClick={() => setAdding(true)}>New user</button>
      </div>
      <Table
        label="Users"
        pages={pages}
        keyOf={(row) => row.name}
        open={(row) => setChanged(row)}
        columns={[
          { title: "User", cell: (row) => <Name text={row.name} />, grow: true },
          { title: "Role here", cell: (row) => <Badge tone={row.role === "none" ? "plain" : "good"}>{row.role}</Badge> },
          { title: "State", cell: (row) => (row.disabled ? <Badge tone="bad">disabled</Badge> : "may log in"), wide: true },
          { title: "Made", cell: (row) => ago(row.created_ms), wide: true },
          { title: "", cell: (row) => <button type="button" class="small" onClick={() => setRemoved(row)}>Remove…</button> },
        ]}
        empty={
          <Empty title={search ? "No user is like that" : "There is no user yet"}>
            Until the first user is made, everybody on this machine may do everything.
          </Empty>
        }
      />
      {adding && <NewUser isFirst={pages.rows.length === 0} onClose={() => setAdding(false)} onDone={pages.again} />}
      {changed && <ChangeUser user={changed} onClose={() => setChanged(undefined)} onDone={pages.again} />}
      {removed && (
        <Action
          title={`Remove ${short(removed.name, 60)}`}
          verb="Remove"
          danger
          act={async () => {
            await call("DELETE /users/{user}", { names: [removed.name] });
            return "The user is removed.";
          }}
          onClose={() => setRemoved(undefined)}
          onDone={pages.again}
        >
          <p>The user's connections end at once, and its tokens are worth nothing any more.</p>
        </Action>
      )}
    </>
  );
}

function Tokens(): JSX.Element {
  const [adding, setAdding] = useState(false);
  const [revoked, setRevoked] = useState<TokenInfo>();
  const pages = usePages("GET /tokens");
  return (
    <>
      <div class="row">
        <button type="button" class="primary" onClick={() => setAdding(true)}>New token</button>
      </div>
      <Table
        label="Tokens"
        pages={pages}
        keyOf={(row) => row.id}
        columns={[
          { title: "Label", cell: (row) => <Name text={row.label} />, grow: true },
          { title: "Role", cell: (row) => <Badge>{row.role}</Badge> },
          { title: "Owner", cell: (row) => (row.owner ? <Name text={row.owner} /> : "–"), wide: true },
          { title: "Id", cell: (row) => <code>{row.id}</code>, wide: true },
          { title: "Ends", cell: (row) => time(row.expires_ms).slice(0, 16), wide: true },
          { title: "", cell: (row) => <button type="button" class="small" onClick={() => setRevoked(row)}>Revoke…</button> },
        ]}
        empty={<Empty title="There is no token">A program logs in with a token: <code>Authorization: Bearer olt_…</code></Empty>}
      />
      {adding && <NewToken onClose={() => setAdding(false)} onDone={pages.again} />}
      {revoked && (
        <Action
          title={`Make the token ${short(revoked.label, 60)} void`}
          verb="Revoke"
          danger
          act={async () => {
            await call("DELETE /tokens/{token}", { names: [revoked.id] });
            return "The token is void.";
          }}
          onClose={() => setRevoked(undefined)}
          onDone={pages.again}
        >
          <p>Programs that use it are refused from now on.</p>
        </Action>
      )}
    </>
  );
}

const TABS = [["users", "Users"], ["rules", "Rules and tester"], ["groups", "Groups"], ["tokens", "Tokens"]] as const;

export default function AccessPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const tab = query.tab ?? "users";
  const may = useMay("admin");
  return (
    <>
      <Head title="Access" about="Who may come in, and what they may do. One list holds for every protocol.">
        {may && tab !== "tokens" && <Search value={search} onChange={setSearch} />}
      </Head>
      <Tabs page="access" current={tab} tabs={TABS} />
      {!may ? (
        <Empty title="Only administrators see users, rules and tokens">Log in as a user with the role admin.</Empty>
      ) : tab === "tokens" ? (
        <Tokens />
      ) : tab === "rules" ? (
        <Rules search={settled} />
      ) : tab === "groups" ? (
        <UserGroups search={settled} />
      ) : (
        <Users search={settled} />
      )}
    </>
  );
}
