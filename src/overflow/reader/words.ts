/**
 * The words by which providers say that something is too large. They are tables of words, not phrases, because an
 * unknown provider uses the same words in another order.
 */

/** What a word says about the number beside it. */
export type Cue = 'exceed' | 'bound' | 'value'

/** The role of a number in an overflow. `room`: the tokens that the input leaves for the output. */
export type Role = 'limit' | 'value' | 'excess' | 'room'

/** The quantity that a number counts. */
export type Noun = 'input' | 'output' | 'window' | 'total'

export function wordSet(words: string): ReadonlySet<string> {
  return new Set(words.trim().split(/\s+/))
}

export function hasAny(words: readonly string[], set: ReadonlySet<string>): boolean {
  return words.some((word) => set.has(word))
}

/** Returns the items before an index; all items if it is -1. */
export function upTo<Item>(items: readonly Item[], end: number): readonly Item[] {
  return end === -1 ? items : items.slice(0, end)
}

/** Returns the words before the first that is in the set; all words if none is. */
export function until(words: readonly string[], set: ReadonlySet<string>): readonly string[] {
  const end = words.findIndex((word) => set.has(word))
  return upTo(words, end)
}

export function without(words: readonly string[], set: ReadonlySet<string>): readonly string[] {
  return words.filter((word) => !set.has(word))
}

/** Returns the meaning of each word; the rows are meanings with their words. */
function table<Meaning extends string>(rows: Readonly<Record<Meaning, string>>): ReadonlyMap<string, Meaning> {
  const meanings = new Map<string, Meaning>()
  for (const meaning in rows) for (const word of wordSet(rows[meaning])) meanings.set(word, meaning)
  return meanings
}

const CUES = table<Cue>({
  exceed: `
    exceed exceeds exceeded exceeding exceeed surpass surpasses surpassed overflow overflows overflowed
    overflowing overrun overruns greater larger longer bigger beyond > >> outgrown outgrows overshoots`,
  bound: `
    max maximum limit limits limited most only allowed allows allow permitted permits supports supported support
    capacity cap caps capped <= =< < ≤ less fewer below under within window ceiling threshold available up bound
    configured accepts accept accepted handle handles n_ctx ctx context context_length context_window
    context_size just restricted budget size`,
  value: `
    max_tokens max_completion_tokens max_new_tokens max_output_tokens n_predict requested requests request
    requesting resulted results resulting contains contain containing contained has have had having given give
    got get received receive recieved provided provide passed sent submitted supplied used uses use using
    consumed consumes currently current actual actually needs need needed requires require required was were
    asked ask asks generated produces comes came holds counted count counts estimated approximately reached keep
    plus was: found saw measured totals totaling totalling amounts adds tokenized tokenised encoded long
    attempted tried trying asking wants wanted specified prompted observed`,
})

const NOUNS = table<Noun>({
  input: `
    prompt prompts input inputs message messages conversation history text texts document documents query
    content contents transcript chat dialog dialogue instruction instructions functions definitions question`,
  output: `
    output outputs completion completions response responses generation generations generate generated
    generating answer max_tokens maxoutputtokens max-tokens max_length maxtokens num_predict n_predict
    max_tokens_to_sample maxtokencount max_decode_length reserved`,
  window: 'context window sequence seq ctx kv max_model_len max_position_embeddings',
  total: 'total sum combined altogether together overall both',
})

/** Parts of names of fields that no table has: `max_prompt_len`, `requested_output`. */
const CUE_PARTS = table<Cue>({
  exceed: 'exceeds exceeded overflow',
  bound: 'max maximum limit allowed cap budget',
  value: 'requested used current actual received total num count',
})

const NOUN_PARTS = table<Noun>({
  input: 'prompt input inputs message messages',
  output: 'output completion new gen generated response',
  window: 'context ctx seq window sequence',
  total: 'total',
})

/** Returns the meaning of a word; else, for the name of a field, of its first known part. */
function meaningOf<Meaning>(
  word: string,
  words: ReadonlyMap<string, Meaning>,
  parts: ReadonlyMap<string, Meaning>,
): Meaning | undefined {
  const known = words.get(word)
  if (known !== undefined || !/[_.]/.test(word)) return known
  for (const part of word.split(/[_.]/)) if (parts.has(part)) return parts.get(part)
  return undefined
}

/** Returns what a word says about a number beside it; `undefined` if nothing. */
export function cueOf(word: string): Cue | undefined {
  return meaningOf(word, CUES, CUE_PARTS)
}

/** Returns the quantity that a word names; `undefined` if it names none. */
export function nounOf(word: string): Noun | undefined {
  return meaningOf(word, NOUNS, NOUN_PARTS)
}

/** Verbs of rules: `must be at most N`. */
export const MODALS = wordSet('must should cannot can may needs')

export const TOKENS = wordSet('token tokens tok toks token(s) -token -tokens')

/** Other units: numbers with these say nothing about a context. */
export const OTHER_UNITS = wordSet(`
  character characters char chars byte bytes b kb mb gb kib mib gib kilobytes megabytes gigabytes s sec secs
  second seconds ms milliseconds minute minutes min mins hour hours day days month months year years rpm tpm rpd
  tpd request requests image images page pages document documents message messages tool tools function functions
  item items file files credit credits cent cents dollar dollars usd eur % percent px pixels retries attempts
  times words word lines line layers gpus gpu`)

/** Chinese words, which have no spaces between them, are replaced in this order, a word before its parts. */
const GLOSSARY = `
  每分钟 per minute | 取值范围 range should be | 范围 range | 频率限制 rate limit | 速率限制 rate limit
  请求过于频繁 too many requests | 限流 rate limit | 余额不足 insufficient balance | 余额 balance | 配额 quota
  额度 quota | 内存 memory | 显存 memory | 上下文 context | 提示词 prompt | 输入 input | 輸入 input | 输出 output
  輸出 output | 生成 output | 消息 messages | 对话 conversation | 文本 text | 内容 content | 窗口 window
  长度 length | 長度 length | 超过 exceeds | 超過 exceeds | 超出 exceeds | 大于 greater than | 不能 cannot
  不得 cannot | 不可 cannot | 小于等于 <= | 小于 less than | 过长 too long | 過長 too long | 太长 too long
  超长 too long | 超限 exceeds limit | 过大 too large | 太大 too large | 过多 too many | 最大 maximum
  最多 at most | 上限 limit | 限制 limit | 模型 model | 请求 request | 当前 current | 实际 actual | 总 total
  数量 count | 数目 count | 令牌 tokens | 字符 characters | 字数 characters | 字节 bytes | 请减少 . please reduce
  请缩短 . please shorten | 请 . please | 。 . | ， , | ； ; | 个 | 為 is | 为 is`

const HAN = /[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]/

/** Returns the text with its Chinese words replaced by English ones. */
export function glossed(text: string): string {
  if (!HAN.test(text)) return text
  let english = text
  for (const [, word = '', meaning] of GLOSSARY.matchAll(/([^\s|]{1,8}) ([^|\n]{0,24})/g)) {
    english = english.replaceAll(word, ` ${meaning} `)
  }
  return english.replace(/ +/g, ' ').trim()
}
