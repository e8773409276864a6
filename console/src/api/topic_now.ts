// What a topic is like now, for the rows in sight: asked one after the other, so that a long list
// costs the broker no more than a person sees, and kept for a while.
import { useEffect, useState } from "preact/hooks";
import { call } from "./client";
import type { TopicPicture } from "./schema";

const KEPT_MS = 10_000;
const KEPT_MAX = 500;
const AT_ONCE = 2;

interface Kept {
  readonly at: number;
  readonly picture: TopicPicture | null;
}

interface Wanted {
  readonly topic: string;
  readonly tell: (found: TopicPicture | null) => void;
}

const kept = new Map<string, Kept>();
const waiting: Wanted[] = [];
let running = 0;

function next(): void {
  const wanted = running < AT_ONCE ? waiting.shift() : undefined;
  if (wanted === undefined) return;
  running += 1;
  call("GET /topics/{topic}", { names: [wanted.topic] })
    .catch(() => null) // it has no message that the reader may see: the row stays without a value
    .then((picture) => {
      const oldest = kept.keys().next().value;
      if (kept.size >= KEPT_MAX && oldest !== undefined) kept.delete(oldest);
      kept.set(wanted.topic, { at: Date.now(), picture });
      wanted.tell(picture);
    })
    .finally(() => {
      running -= 1;
      next();
    });
}

/** A topic as it is now; undefined while nobody knows, null where there is nothing to know. */
export function useTopicNow(topic: string | null): TopicPicture | null | undefined {
  const [found, setFound] = useState<TopicPicture | null>();
  useEffect(() => {
    setFound(undefined);
    if (topic === null) return;
    const known = kept.get(topic);
    if (known !== undefined && Date.now() - known.at < KEPT_MS) {
      setFound(known.picture);
      return;
    }
    const wanted: Wanted = { topic, tell: (picture) => setFound(picture) };
    waiting.push(wanted);
    next();
    return () => {
      const at = waiting.indexOf(wanted);
      if (at >= 0) waiting.splice(at, 1);
    };
  }, [topic]);
  return found;
}
