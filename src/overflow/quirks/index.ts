/** The registry: every quirk by hand, in order. The first that recognises a reply says what it means. */
import type { Quirk } from '../quirk.ts'
import { anthropicInputPlusOutput } from './anthropic-input-plus-output.ts'
import { anthropicLongContext } from './anthropic-long-context.ts'
import { anthropicOutputBound } from './anthropic-output-bound.ts'
import { anthropicPromptTooLong } from './anthropic-prompt-too-long.ts'
import { attachments } from './attachments.ts'
import { bedrockInput } from './bedrock-input.ts'
import { bedrockMaxLength } from './bedrock-max-length.ts'
import { bedrockNova } from './bedrock-nova.ts'
import { bedrockOutputBound } from './bedrock-output-bound.ts'
import { bytes } from './bytes.ts'
import { cerebrasLength } from './cerebras-length.ts'
import { cohereTooMany } from './cohere-too-many.ts'
import { contextLengthCode } from './context-length-code.ts'
import { contextOverflow } from './context-overflow.ts'
import { credits } from './credits.ts'
import { dashscopeRange } from './dashscope-range.ts'
import { fireworksPrompt } from './fireworks-prompt.ts'
import { geminiInput } from './gemini-input.ts'
import { generalReader } from './general-reader.ts'
import { groqOutputBound } from './groq-output-bound.ts'
import { groqReduce } from './groq-reduce.ts'
import { litellmPrecheck } from './litellm-precheck.ts'
import { llamaCppPython } from './llama-cpp-python.ts'
import { llamacppFields } from './llamacpp-fields.ts'
import { lmstudioKeep } from './lmstudio-keep.ts'
import { memory } from './memory.ts'
import { minimax2013 } from './minimax-2013.ts'
import { minimaxWindow } from './minimax-window.ts'
import { mistralTooLarge } from './mistral-too-large.ts'
import { moderation } from './moderation.ts'
import { moonshotTokenLimit } from './moonshot-token-limit.ts'
import { ollamaTooLong } from './ollama-too-long.ts'
import { openaiMessagesResulted } from './openai-messages-resulted.ts'
import { openaiOutputBound } from './openai-output-bound.ts'
import { openaiRequestedSplit } from './openai-requested-split.ts'
import { openaiWindowOnly } from './openai-window-only.ts'
import { openrouterSplit } from './openrouter-split.ts'
import { parameters } from './parameters.ts'
import { planContext } from './plan-context.ts'
import { promptTokensCode } from './prompt-tokens-code.ts'
import { rateLimit } from './rate-limit.ts'
import { sambanovaSequence } from './sambanova-sequence.ts'
import { sglangInput } from './sglang-input.ts'
import { sglangTotal } from './sglang-total.ts'
import { siliconflowPrompt } from './siliconflow-prompt.ts'
import { statusSaysNo } from './status-says-no.ts'
import { templates } from './templates.ts'
import { tensorrtPrompt } from './tensorrt-prompt.ts'
import { tgiSum } from './tgi-sum.ts'
import { timeIsUp } from './time-is-up.ts'
import { tokenLimitCode } from './token-limit-code.ts'
import { tooLargeForModel } from './too-large-for-model.ts'
import { vertexOutputRange } from './vertex-output-range.ts'
import { vllmLongerThanModel } from './vllm-longer-than-model.ts'
import { vllmPassedCharacters } from './vllm-passed-characters.ts'
import { vllmPassedTokens } from './vllm-passed-tokens.ts'
import { vllmRoom } from './vllm-room.ts'
import { volcengineMessageTokens } from './volcengine-message-tokens.ts'
import { watsonxInput } from './watsonx-input.ts'
import { workersAi5021 } from './workers-ai-5021.ts'
import { xaiPrompt } from './xai-prompt.ts'
import { zhipu1261 } from './zhipu-1261.ts'

export const QUIRKS: readonly Quirk[] = [
  // Plans and tiers, which come dressed as rate limits.
  anthropicLongContext,
  planContext,
  // Fields before words.
  llamacppFields,
  promptTokensCode,
  contextLengthCode,
  zhipu1261,
  workersAi5021,
  // Words that one of the vetoes below would take for its own.
  vllmPassedTokens,
  vllmPassedCharacters,
  vllmRoom,
  bedrockMaxLength,
  minimaxWindow,
  // What looks like an overflow and is none.
  minimax2013,
  statusSaysNo,
  credits,
  rateLimit,
  parameters,
  memory,
  moderation,
  templates,
  timeIsUp,
  bytes,
  attachments,
  // Fields that vetoes come before.
  tokenLimitCode,
  // The words of one provider.
  anthropicPromptTooLong,
  anthropicInputPlusOutput,
  anthropicOutputBound,
  openaiMessagesResulted,
  openaiRequestedSplit,
  openrouterSplit,
  openaiWindowOnly,
  openaiOutputBound,
  vllmLongerThanModel,
  sglangInput,
  sglangTotal,
  tgiSum,
  llamaCppPython,
  lmstudioKeep,
  ollamaTooLong,
  geminiInput,
  vertexOutputRange,
  mistralTooLarge,
  cohereTooMany,
  groqOutputBound,
  groqReduce,
  cerebrasLength,
  xaiPrompt,
  fireworksPrompt,
  moonshotTokenLimit,
  dashscopeRange,
  volcengineMessageTokens,
  siliconflowPrompt,
  bedrockInput,
  bedrockNova,
  bedrockOutputBound,
  watsonxInput,
  sambanovaSequence,
  tensorrtPrompt,
  litellmPrecheck,
  tooLargeForModel,
  contextOverflow,
  // Everybody else.
  generalReader,
]
