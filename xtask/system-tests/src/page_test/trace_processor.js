// Asks Perfetto's trace processor: node trace_processor.js DIRECTORY TRACE SQL...
//
// DIRECTORY holds Perfetto's user interface, in which the trace processor is WebAssembly that runs
// in a worker of a browser. Prints an array with the rows of each question, as JSON. The messages
// are those of protos/perfetto/trace_processor/trace_processor.proto.
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [directory, trace, ...questions] = process.argv.slice(2);

// What the worker expects of a browser.
process.type = 'renderer';
globalThis.WorkerGlobalScope = class {};
globalThis.self = { location: { href: 'file:///' } };
globalThis.location = self.location;
globalThis.XMLHttpRequest = class {
  open(_, url) {
    this.url = url;
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(directory, this.url))).buffer;
  }
};
process.on('uncaughtException', (error) => {
  process.stderr.write(`${error.message}\n`.slice(0, 1000));
  process.exit(1);
});
console.log = () => {};
console.warn = () => {};

const varint = (value) => {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
};
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

// Reads the numbers of a message.
class Reader {
  constructor(message) {
    this.message = message;
    this.at = 0;
  }
  hasMore() {
    return this.at < this.message.length;
  }
  varint() {
    for (let value = 0n, shift = 0n; ; shift += 7n) {
      const byte = this.message[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return Number(BigInt.asIntN(64, value));
    }
  }
  bytes(length) {
    return this.message.subarray(this.at, (this.at += length));
  }
}

// The fields of a message: pairs of the field's number, and a number or bytes.
function* fields(message) {
  for (const reader = new Reader(message); reader.hasMore(); ) {
    const tag = reader.varint();
    const lengths = { 1: 8, 5: 4 };
    const value = tag % 8 === 0 ? reader.varint()
      : reader.bytes(lengths[tag % 8] ?? reader.varint());
    yield [tag >> 3, value];
  }
}
const packed = (message) => {
  const all = [];
  for (const reader = new Reader(message); reader.hasMore(); ) all.push(reader.varint());
  return all;
};

const answers = questions.map(() => ({ columns: 0, cells: [] }));
let answered = 0;

function takeBatch(answer, batch) {
  const of = { 1: [], 2: [], 3: [], 5: [] };
  let isLast = false;
  for (const [field, value] of fields(batch)) {
    if (field === 6) isLast = value !== 0;
    else if (field === 3) {
      for (let at = 0; at < value.length; at += 8) of[3].push(value.readDoubleLE(at));
    } else if (field === 5) of[5] = value.toString().split('\0');
    else if (field === 1 || field === 2) of[field] = of[field].concat(packed(value));
  }
  // CellsBatch.CellType: null, integer, real, text.
  const next = { 1: () => null, 2: () => of[2].shift(), 3: () => of[3].shift() };
  next[4] = () => of[5].shift();
  for (const kind of of[1]) answer.cells.push(next[kind]());
  return isLast;
}

function takeResult(result) {
  const answer = answers[answered];
  for (const [field, value] of fields(result)) {
    if (field === 1) answer.columns += 1;
    else if (field === 2) throw new Error(`${questions[answered]}: ${value}`);
    else if (field === 3 && takeBatch(answer, value)) answered += 1;
  }
}

const port = {
  postMessage(reply) {
    for (const [, message] of fields(Buffer.from(reply))) {
      for (const [field, value] of fields(message)) {
        if (field === 5) throw new Error(`the trace processor fails: ${value}`);
        if (field === 201) {
          for (const [of, text] of fields(value)) {
            if (of === 2) throw new Error(`the trace cannot be read: ${text}`);
          }
        }
        if (field === 203) takeResult(value);
      }
    }
  },
};
let sequence = 0;
const ask = (method, argument) => {
  const message = Buffer.concat([number(1, ++sequence), number(2, method), argument]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
};

vm.runInThisContext(fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8'));
self.onmessage({ data: port });
// The module finishes its start in the tasks that are queued already.
setTimeout(() => {
  ask(1, bytes(101, fs.readFileSync(trace)));
  ask(2, Buffer.alloc(0));
  for (const question of questions) ask(3, bytes(103, bytes(1, Buffer.from(question))));
  if (answered !== questions.length) throw new Error('not every question was answered');
  const rows = answers.map(({ columns, cells }) =>
    Array.from({ length: cells.length / columns }, (_, row) =>
      cells.slice(row * columns, (row + 1) * columns),
    ),
  );
  process.stdout.write(JSON.stringify(rows));
}, 500);
