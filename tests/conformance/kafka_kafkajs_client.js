// KafkaJS behind the lines of kafka_js_lines.js. Arguments: folder of the packages, port.
// It has only gzip itself; the other codecs are plug-ins, here from other packages.
const path = require("node:path");
const [folder, port] = process.argv.slice(2);
const load = (name) => require(require.resolve(name, { paths: [path.resolve(folder)] }));
const { bytes, text, serve } = require("./kafka_js_lines.js");
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = load("kafkajs");
const { lz4Compress, lz4Decompress } = load("@platformatic/wasm-utils");
const zstd = load("@bokuweb/zstd-wasm");
const ready = zstd.init();

CompressionCodecs[CompressionTypes.Snappy] = load("kafkajs-snappy");
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4Compress(encoder.buffer)),
  decompress: async (data) => Buffer.from(lz4Decompress(data)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (data) => Buffer.from(zstd.decompress(data)),
});
const codecs = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 };
const kafka = new Kafka({ brokers: [`127.0.0.1:${port}`], logLevel: logLevel.NOTHING });
const members = {};
let admin;

async function producing(options, work) {
  await ready;
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...options });
  await producer.connect();
  try {
    return await work(producer);
  } finally {
    await producer.disconnect();
  }
}

// Headers are an object: what has the same name is an array, what has no value is null.
function headers(pairs) {
  const found = {};
  for (const [name, value] of pairs)
    found[name] = name in found ? [].concat(found[name], bytes(value)) : bytes(value);
  return found;
}

const pairs = (found) =>
  Object.entries(found ?? {}).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((one) => [name, text(one)]) : [[name, text(value)]]);

const row = (partition, message) => ({
  value: text(message.value), key: text(message.key), headers: pairs(message.headers),
  timestamp: message.timestamp, offset: message.offset, partition,
});

function consumer(group, committed) {
  return kafka.consumer({
    groupId: group, sessionTimeout: 6000, heartbeatInterval: 300, rebalanceTimeout: 10000,
    maxWaitTimeInMs: 100, readUncommitted: !committed,
  });
}

async function administer(work) {
  if (!admin) {
    admin = kafka.admin();
    await admin.connect();
  }
  return work(admin);
}

// Takes records of the topics until there are enough; each goes to `take`.
async function until(reader, topics, enough, take) {
  await ready;
  await reader.connect();
  await reader.subscribe({ topics, fromBeginning: true });
  await new Promise((resolve, reject) => {
    reader.on(reader.events.CRASH, ({ payload }) => reject(payload.error));
    reader.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        await take(topic, partition, message);
        if (enough()) resolve();
      },
    }).catch(reject);
  });
}

let groups = 0;

serve({
  produce: ({ topic, records, codec }) =>
    producing({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      const [answer] = await producer.send({
        topic, compression: codecs[codec], acks: -1,
        messages: records.map((record) => ({
          value: bytes(record.value), key: bytes(record.key), headers: headers(record.headers),
          partition: record.partition,
          ...(record.timestamp === null ? {} : { timestamp: String(record.timestamp) }),
        })),
      });
      return records.map((_, index) => String(BigInt(answer.baseOffset) + BigInt(index)));
    }),

  // It reads only as a member of a group, so each reading is a group of its own.
  read: async ({ counts, committed }) => {
    const found = Object.fromEntries(Object.keys(counts).map((topic) => [topic, []]));
    const reader = consumer(`kafkajs-read-${process.pid}-${groups++}`, committed);
    await until(
      reader, Object.keys(counts),
      () => Object.entries(counts).every(([topic, count]) => found[topic].length >= count),
      (topic, partition, message) => found[topic].push(row(partition, message)));
    await reader.disconnect();
    return found;
  },

  transact: ({ name, topic, values, commit }) =>
    producing({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      const transaction = await producer.transaction();
      await transaction.send({
        topic, messages: values.map((value) => ({ value: bytes(value), partition: 0 })),
      });
      await (commit ? transaction.commit() : transaction.abort());
    }),

  transform: async ({ name, group, source, target, count, commit }) => {
    const taken = [];
    const reader = consumer(group, true);
    await until(reader, [source], () => taken.length >= count,
      (_topic, partition, message) => { if (taken.length < count) taken.push([partition, message]); });
    const next = {};
    for (const [partition, message] of taken) next[partition] = String(BigInt(message.offset) + 1n);
    await producing({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      const transaction = await producer.transaction();
      await transaction.send({
        topic: target,
        messages: taken.map(([, message]) => (
          { value: Buffer.concat([Buffer.from("> "), message.value]), partition: 0 })),
      });
      const partitions = Object.entries(next).map(([partition, offset]) => (
        { partition: Number(partition), offset }));
      await transaction.sendOffsets({
        consumerGroupId: group, topics: [{ topic: source, partitions }],
      });
      await (commit ? transaction.commit() : transaction.abort());
    });
    await reader.disconnect();
  },

  join: async ({ member, group, topic }) => {
    const reader = consumer(group, false);
    const state = (members[member] = { reader, took: [], assigned: [] });
    reader.on(reader.events.GROUP_JOIN, ({ payload }) => {
      state.assigned = payload.memberAssignment[topic] ?? [];
    });
    reader.on(reader.events.REBALANCING, () => { state.assigned = []; });
    await reader.connect();
    await reader.subscribe({ topics: [topic], fromBeginning: true });
    await reader.run({
      autoCommitInterval: 100,
      eachMessage: async ({ partition, message }) => { state.took.push([partition, message.offset]); },
    });
  },
  assigned: ({ member }) => members[member].assigned,
  took: ({ member }) => members[member].took,
  leave: async ({ member }) => {
    await members[member].reader.disconnect();
    delete members[member];
  },

  create: ({ topic, partitions, configs }) => administer((it) => it.createTopics({
    waitForLeaders: false,
    topics: [{
      topic, numPartitions: partitions, replicationFactor: -1,
      configEntries: Object.entries(configs).map(([name, value]) => ({ name, value })),
    }],
  })),
  partitions: ({ topic }) => administer(async (it) =>
    (await it.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length),
  configs: ({ topic }) => administer(async (it) => {
    const { resources } = await it.describeConfigs({ resources: [{ type: 2, name: topic }] });
    return Object.fromEntries(resources[0].configEntries.map((entry) => [entry.configName, entry.configValue]));
  }),
  configure: ({ topic, name, value }) => administer((it) => it.alterConfigs({
    resources: [{ type: 2, name: topic, configEntries: [{ name, value }] }],
  })),
  grow: ({ topic, partitions }) => administer((it) => it.createPartitions({
    topicPartitions: [{ topic, count: partitions }],
  })),
  delete: ({ topic }) => administer((it) => it.deleteTopics({ topics: [topic] })),
  topics: () => administer((it) => it.listTopics()),
});
