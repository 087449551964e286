/**
 * The words by which providers speak about too much. Tables, not phrases: a provider that nobody listed says the same
 * things with the same words in another order.
 */

/** What a word says about the number beside it. */
export type Cue = 'exceed' | 'bound' | 'value'

/** What a quantity is a quantity of. */
export type Noun = 'input' | 'output' | 'window' | 'total'

const table = <Meaning extends string>(
  rows: Readonly<Record<Meaning, string>>,
): ReadonlyMap<string, Meaning> =>
  new Map(
    (Object.entries(rows) as [Meaning, string][]).flatMap(([meaning, words]) =>
      words.split(/\s+/).map((word): [string, Meaning] => [word, meaning]),
    ),
  )

/** English, and what is nearest to it in the languages that providers answer in. */
const CUES: ReadonlyMap<string, Cue> = table<Cue>({
  exceed: `exceed exceeds exceeded exceeding exceeed surpass surpasses surpassed overflow overflows overflowed overflowing overrun
    overruns greater larger longer bigger beyond > >> outgrown outgrows overshoots
    dépasse dépassent dépassé excède excede exceden excedido supera superan superado überschreitet überschritten übersteigt
    überschreiten превышает превышают превышен превышено превышена ultrapassa ultrapassou`,
  bound: `max maximum maximal maximale máximo máxima máximum limit limits limited limite límite limita lim most only allowed allows allow permitted
    permits supports supported support capacity cap caps capped <= =< < ≤ less fewer below under within window ceiling threshold available up
    bound configured accepts accept accepted handle handles n_ctx ctx context context_length max_model_len max_seq_len max_context_length
    max_position_embeddings max_input_tokens max_prompt_tokens max_num_tokens max_total_tokens context_window context_size
    max_sequence_length max_input_length just restricted budget size
    höchstens maximalen maximum-limit grenze limites максимум максимальная максимальный максимальной лимит лимита`,
  value: `max_tokens max_completion_tokens max_new_tokens max_output_tokens num_predict n_predict requested requests request requesting resulted results resulting contains contain containing contained has have had
    having given give got get received receive recieved provided provide passed sent submitted supplied used uses use using consumed
    consumes currently current actual actually needs need needed requires require required was were asked ask asks generated
    produces comes came holds counted count counts estimated approximately reached keep plus was: found saw measured totals totaling totalling
    amounts adds tokenized tokenised encoded long attempted tried trying asking wants wanted specified prompted observed
    demandé reçu solicitado angefordert enthält hat запрошено получено`,
})

const NOUNS: ReadonlyMap<string, Noun> = table<Noun>({
  input: `prompt prompts input inputs message messages conversation history text texts document documents query content contents
    transcript chat dialog dialogue input_tokens prompt_tokens prompt_token_ids n_prompt_tokens instruction instructions functions
    definitions question max_input_tokens max_prompt_tokens max_input_length
    eingabe entrada invite entrée saisie запрос запроса промпт промпта ввод`,
  output: `output outputs completion completions response responses generation generations generate generated generating answer
    max_tokens max_completion_tokens max_output_tokens maxoutputtokens max_new_tokens max-tokens max_gen_tokens max_length
    maxtokens num_predict n_predict max_tokens_to_sample new_tokens max_generated_tokens max_output_length maxtokencount
    max_gen_len max_decode_length output_tokens completion_tokens reserved ausgabe salida saída sortie вывод ответ`,
  window: `context window sequence seq n_ctx ctx kv max_model_len max_seq_len max_sequence_length max_position_embeddings contexto kontext kontextlänge contexte контекст
    контекста контекстного fenster ventana fenêtre context_length context_window max_context_length max_total_tokens`,
  total: 'total sum combined altogether together overall both total_tokens max_total_tokens',
})

/** Names of fields that no table has: `max_prompt_len`, `requested_output`. */
const PARTS = /[_.]/

const CUE_PARTS: ReadonlyMap<string, Cue> = table<Cue>({
  exceed: 'exceeds exceeded overflow',
  bound: 'max maximum limit allowed cap budget',
  value: 'requested used current actual received total num count',
})

const NOUN_PARTS: ReadonlyMap<string, Noun> = table<Noun>({
  input: 'prompt input inputs message messages',
  output: 'output completion new gen generated response',
  window: 'context ctx seq window sequence',
  total: 'total',
})

/** What the first known part of a field's name says. */
function byParts<Meaning>(word: string, parts: ReadonlyMap<string, Meaning>): Meaning | undefined {
  if (!PARTS.test(word)) return undefined
  for (const part of word.split(PARTS)) {
    const meaning = parts.get(part)
    if (meaning !== undefined) return meaning
  }
  return undefined
}

export function cueOf(word: string): Cue | undefined {
  return CUES.get(word) ?? byParts(word, CUE_PARTS)
}

export function nounOf(word: string): Noun | undefined {
  return NOUNS.get(word) ?? byParts(word, NOUN_PARTS)
}

/** The unit that can be a context's. */
export const TOKENS: ReadonlySet<string> = new Set(
  'token tokens tok toks token(s) jetons fichas токен токена токенов tokeny -token -tokens'.split(' '),
)

/** Units of what is no context: numbers of these say nothing. */
export const OTHER_UNITS: ReadonlySet<string> = new Set(
  `character characters char chars byte bytes b kb mb gb kib mib gib kilobytes megabytes gigabytes s sec secs second seconds ms
  milliseconds minute minutes min mins hour hours day days month months year years rpm tpm rpd tpd request requests image images page
  pages document documents message messages tool tools function functions item items file files credit credits cent cents dollar dollars usd eur % percent px
  pixels retries attempts times words word lines line layers gpus gpu zeichen caracteres caractères символов байт`.split(
    /\s+/,
  ),
)

/** Words that open a piece of advice: what follows is not about what went wrong. */
export const ADVICE: ReadonlySet<string> = new Set(
  `please reduce reducing try consider shorten decrease increase increasing adjust lower truncate truncating compress split remove use start enable upgrade see
  visit contact refer learn check switch set ensure make retry`.split(/\s+/),
)

/** Adjectives that make "too …" about size. */
export const SIZES: ReadonlySet<string> = new Set(
  'long large many big lengthy much high lang groß viele largo larga grande muchos длинный большой много'.split(
    ' ',
  ),
)

/** Verbs of being full. */
export const FULL: ReadonlySet<string> = new Set(
  'full exhausted overflow overflowed overflows depleted filled reached hit overrun exceeded'.split(' '),
)

/** Chinese, Japanese and Korean have no spaces between words: their words are replaced by the English ones, longest first. */
const GLOSSARY: readonly (readonly [string, string])[] = [
  ['每分钟', 'per minute'],
  ['取值范围', 'range should be'],
  ['范围', 'range'],
  ['频率限制', 'rate limit'],
  ['速率限制', 'rate limit'],
  ['请求过于频繁', 'too many requests'],
  ['限流', 'rate limit'],
  ['余额不足', 'insufficient balance'],
  ['余额', 'balance'],
  ['配额', 'quota'],
  ['额度', 'quota'],
  ['内存', 'memory'],
  ['显存', 'memory'],
  ['上下文', 'context'],
  ['提示词', 'prompt'],
  ['输入', 'input'],
  ['輸入', 'input'],
  ['输出', 'output'],
  ['輸出', 'output'],
  ['生成', 'output'],
  ['消息', 'messages'],
  ['对话', 'conversation'],
  ['文本', 'text'],
  ['内容', 'content'],
  ['窗口', 'window'],
  ['长度', 'length'],
  ['長度', 'length'],
  ['超过', 'exceeds'],
  ['超過', 'exceeds'],
  ['超出', 'exceeds'],
  ['大于', 'greater than'],
  ['不能', 'cannot'],
  ['不得', 'cannot'],
  ['不可', 'cannot'],
  ['小于等于', '<='],
  ['小于', 'less than'],
  ['过长', 'too long'],
  ['過長', 'too long'],
  ['太长', 'too long'],
  ['超长', 'too long'],
  ['超限', 'exceeds limit'],
  ['过大', 'too large'],
  ['太大', 'too large'],
  ['过多', 'too many'],
  ['最大', 'maximum'],
  ['最多', 'at most'],
  ['上限', 'limit'],
  ['限制', 'limit'],
  ['模型', 'model'],
  ['请求', 'request'],
  ['当前', 'current'],
  ['实际', 'actual'],
  ['总', 'total'],
  ['数量', ' count'],
  ['数目', ' count'],
  ['令牌', 'tokens'],
  ['字符', 'characters'],
  ['字数', 'characters'],
  ['字节', 'bytes'],
  ['请减少', '. please reduce'],
  ['请缩短', '. please shorten'],
  ['请', '. please'],
  ['。', '. '],
  ['，', ', '],
  ['；', '; '],
  ['个', ' '],
  ['為', 'is'],
  ['为', 'is'],
  // Japanese
  ['コンテキスト', 'context'],
  ['プロンプト', 'prompt'],
  ['トークン', 'tokens'],
  ['入力', 'input'],
  ['出力', 'output'],
  ['長さ', 'length'],
  ['超えています', 'exceeds'],
  ['超えました', 'exceeds'],
  ['超え', 'exceeds'],
  ['長すぎ', 'too long'],
  ['大きすぎ', 'too large'],
  ['制限', 'limit'],
  ['モデル', 'model'],
  ['文字', 'characters'],
  // Korean
  ['컨텍스트', 'context'],
  ['프롬프트', 'prompt'],
  ['토큰', 'tokens'],
  ['입력', 'input'],
  ['출력', 'output'],
  ['길이', 'length'],
  ['초과', 'exceeds'],
  ['최대', 'maximum'],
  ['제한', 'limit'],
  ['모델', 'model'],
]

/** Hiragana, katakana, Han, Hangul and their punctuation. */
const EASTERN = /[\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]/

/** The text with words of languages that are written without spaces put into English, where it has any. */
export function glossed(text: string): string {
  if (!EASTERN.test(text)) return text
  return GLOSSARY.reduce((done, [word, english]) => done.replaceAll(word, ` ${english} `), text)
    .replace(/ +/g, ' ')
    .trim()
}
