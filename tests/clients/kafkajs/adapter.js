// The adapter of kafkajs: calls as lines of JSON on stdin, answers on stdout (see ../remote.py).

'use strict'

const readline = require('node:readline')
const {
  Kafka,
  AssignerProtocol,
  CompressionCodecs,
  CompressionTypes,
  ConfigResourceTypes,
  PartitionAssigners,
  logLevel,
} = require('kafkajs')
const SnappyJs = require('snappyjs')
const Lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const PATIENCE_MS = 30_000
const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

// ---- codecs that kafkajs leaves to its users

const XERIAL_MAGIC = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00])
const XERIAL_HEADER_SIZE = 16

function snappyDecompress(buffer) {
  if (!buffer.subarray(0, 8).equals(XERIAL_MAGIC)) return Buffer.from(SnappyJs.uncompress(buffer))
  const blocks = []
  for (let at = XERIAL_HEADER_SIZE; at < buffer.length; ) {
    const size = buffer.readUInt32BE(at)
    blocks.push(Buffer.from(SnappyJs.uncompress(buffer.subarray(at + 4, at + 4 + size))))
    at += 4 + size
  }
  return Buffer.concat(blocks)
}

function installCodecs(zstd) {
  CompressionCodecs[CompressionTypes.Snappy] = () => ({
    compress: async (encoder) => Buffer.from(SnappyJs.compress(encoder.buffer)),
    decompress: async (buffer) => snappyDecompress(buffer),
  })
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: (encoder) => Lz4.compressFrame(encoder.buffer),
    decompress: (buffer) => Lz4.decompressFrame(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
    decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
  })
}

// ---- the calls

const encode = (data) => (data === null || data === undefined ? null : data.toString('base64'))
const decode = (text) => (text === null ? null : Buffer.from(text, 'base64'))

function received(partition, message) {
  const headers = Object.entries(message.headers ?? {}).flatMap(([name, value]) =>
    [value].flat().map((one) => [name, encode(Buffer.from(one))])
  )
  return {
    partition,
    offset: Number(message.offset),
    key: encode(message.key),
    value: encode(message.value),
    headers,
    timestamp_ms: Number(message.timestamp),
    // Bit 3 of a batch's attributes; kafkajs does not name it.
    timestamp_type: (message.batchContext?.timestampType ?? 0) === 1 ? 'LogAppendTime' : 'CreateTime',
  }
}

const members = new Map()
let kafka, admin
let lastHandle = 0

function headersOf(rows) {
  const headers = {}
  for (const [name, value] of rows) headers[name] = [...(headers[name] ?? []), decode(value)]
  return headers
}

const calls = {
  async produce({ topic, records, partition, codec, acks, idempotent }) {
    const producer = kafka.producer({ idempotent, maxInFlightRequests: idempotent ? 1 : 5, retry: { retries: 3 } })
    await producer.connect()
    try {
      const messages = records.map((record) => ({
        key: decode(record.key),
        value: decode(record.value),
        headers: headersOf(record.headers),
        partition,
        ...(record.timestamp_ms === null ? {} : { timestamp: String(record.timestamp_ms) }),
      }))
      const answer = await producer.send({ topic, messages, acks, compression: TYPES[codec], timeout: PATIENCE_MS })
      if (acks === 0) return messages.map(() => -1)
      const base = Number(answer[0].baseOffset)
      return messages.map((_, index) => base + index)
    } finally {
      await producer.disconnect()
    }
  },

  // kafkajs reads through groups only, so this is a group of one that seeks.
  async consume({ topic, partition, offset, count }) {
    const groupId = `kafkajs-read-${process.pid}-${++lastHandle}`
    const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100, sessionTimeout: 6000 })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    const rows = []
    try {
      await new Promise((resolve, reject) => {
        setTimeout(resolve, PATIENCE_MS).unref()
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        consumer
          .run({
            autoCommit: false,
            eachBatchAutoResolve: false,
            eachBatch: async ({ batch, resolveOffset }) => {
              for (const message of batch.messages) {
                // The client hands over whole batches; what lies before the offset asked for is the reader's to skip.
                if (batch.partition === partition && Number(message.offset) >= offset && rows.length < count) {
                  rows.push(received(batch.partition, message))
                }
                resolveOffset(message.offset)
              }
              if (rows.length >= count) resolve()
            },
          })
          .then(() => consumer.seek({ topic, partition, offset: String(offset) }))
          .catch(reject)
      })
    } finally {
      await consumer.disconnect()
    }
    return rows
  },

  async join({ group, topic, client_id, ...settings }) {
    const own = connect(client_id)
    const consumer = own.consumer({
      groupId: group,
      partitionAssigners: [PartitionAssigners.roundRobin],
      sessionTimeout: settings.session_timeout_ms,
      heartbeatInterval: settings.heartbeat_interval_ms,
      rebalanceTimeout: settings.rebalance_timeout_ms,
      metadataMaxAge: settings.metadata_max_age_ms,
      maxWaitTimeInMs: 100,
    })
    const state = { consumer, topic, received: [], assignment: [], assignmentsSeen: 0, failure: null }
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      state.assignment = payload.memberAssignment[topic] ?? []
      state.assignmentsSeen += 1
    })
    consumer.on(consumer.events.REBALANCING, () => {
      state.assignment = []
    })
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      if (!payload.restart) state.failure = payload.error
    })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        state.received.push(received(partition, message))
      },
    })
    members.set(++lastHandle, state)
    return lastHandle
  },

  async member_state({ member, since }) {
    const state = members.get(member)
    if (state.failure) throw state.failure
    return {
      received: state.received.slice(since),
      assignment: state.assignment,
      assignments_seen: state.assignmentsSeen,
      revoked: [],
    }
  },

  async member_commit({ member, offsets }) {
    const { consumer, topic, received: rows } = members.get(member)
    const positions = new Map(offsets ?? rows.map((row) => [row.partition, row.offset + 1]))
    const chosen = [...positions].map(([partition, offset]) => ({ topic, partition, offset: String(offset) }))
    await consumer.commitOffsets(chosen)
    return null
  },

  async member_leave({ member }) {
    await members.get(member).consumer.disconnect()
    return null
  },

  list_topics: () => admin.listTopics(),

  async create_topic({ topic, partitions, config, replication_factor }) {
    const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }))
    const wanted = { topic, numPartitions: partitions, replicationFactor: replication_factor, configEntries }
    // kafkajs turns "exists already" into false.
    if (!(await admin.createTopics({ topics: [wanted], waitForLeaders: true }))) throw coded(36, 'exists already')
    return null
  },

  async delete_topic({ topic }) {
    await admin.deleteTopics({ topics: [topic] })
    return null
  },

  async partition_count({ topic }) {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    return topics[0].partitions.length
  },

  async create_partitions({ topic, total }) {
    await admin.createPartitions({ topicPartitions: [{ topic, count: total }] })
    return null
  },

  async topic_config({ topic }) {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    const answer = await admin.describeConfigs({ resources, includeSynonyms: false })
    return Object.fromEntries(answer.resources[0].configEntries.map((entry) => [entry.configName, entry.configValue]))
  },

  async set_topic_config({ topic, config }) {
    const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }))
    await admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }] })
    return null
  },

  // kafkajs does not tell the low watermark that the broker answered with, so it is asked for; and it fails on a
  // topic that it has not heard of yet.
  async delete_records({ topic, partition, before }) {
    await calls.watermarks({ topic, partition })
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
    return (await calls.watermarks({ topic, partition }))[0]
  },

  async watermarks({ topic, partition }) {
    const found = (await admin.fetchTopicOffsets(topic)).find((row) => row.partition === partition)
    return [Number(found.low), Number(found.high)]
  },

  // For a time after the last record kafkajs answers with the end of the log.
  async offset_for_time({ topic, partition, timestamp_ms }) {
    const rows = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp_ms)
    const offset = Number(rows.find((row) => row.partition === partition).offset)
    const [, high] = await calls.watermarks({ topic, partition })
    return offset >= high ? null : offset
  },

  async list_groups() {
    return (await admin.listGroups()).groups.map((group) => group.groupId)
  },

  async describe_group({ group }) {
    const { groups } = await admin.describeGroups([group])
    if (groups[0].errorCode) throw coded(groups[0].errorCode, `describe ${group}`)
    const described = {}
    for (const member of groups[0].members) {
      const assignment = AssignerProtocol.MemberAssignment.decode(member.memberAssignment)
      described[member.clientId] = Object.values(assignment?.assignment ?? {}).flat()
    }
    return { state: groups[0].state, members: described }
  },

  async delete_group({ group }) {
    await admin.deleteGroups([group])
    return null
  },

  async committed({ group, topic, partition }) {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    const offset = Number(found.partitions.find((row) => row.partition === partition)?.offset ?? -1)
    return offset < 0 ? null : offset
  },
}

// ---- lines in, lines out

const coded = (code, message) => Object.assign(new Error(message), { code })

// Aggregated errors carry the ones that matter inside.
function codeOf(error) {
  const inner = error.errors?.[0] ?? error.groups?.[0] ?? error.partitions?.[0]?.error ?? error.cause
  if (typeof error.code === 'number') return error.code
  if (typeof error.errorCode === 'number') return error.errorCode
  return inner ? codeOf(inner) : -1
}

function connect(clientId) {
  const retry = { retries: 5, initialRetryTime: 50 }
  return new Kafka({ clientId, brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry })
}

async function answer(line) {
  const { id, call, ...args } = JSON.parse(line)
  let reply
  try {
    reply = { id, result: await calls[call](args) }
  } catch (error) {
    reply = { id, code: codeOf(error), error: `${error.name}: ${error.message}` }
  }
  process.stdout.write(JSON.stringify(reply) + '\n')
}

async function main() {
  installCodecs(await new Promise((resolve) => ZstdCodec.run((zstd) => resolve(new zstd.Streaming()))))
  kafka = connect('kafkajs')
  admin = kafka.admin()
  await admin.connect()
  const lines = readline.createInterface({ input: process.stdin })
  lines.on('line', answer)
  lines.on('close', async () => {
    await admin.disconnect()
    process.exit(0)
  })
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
