#!/usr/bin/env bash
# Libraries that say what a step of an agent cost, and a step of which 100,000 of 103,000 prompt tokens were in the provider's cache.
#
# Seen with tokenlens 1.3.1, @pydantic/genai-prices 0.1.8, ai-sdk-cost-calculator 7.1.14, ai 7.0.173, @ai-sdk/openai 4.0.118, Node 20.20: at the prices of
# gpt-5 the step costs 2.13 cents, say two. tokenlens says 14.68: it bills all 103,000 as new, and the 100,000 again as cached. Of the
# `usage` of ai 7, with which it says that it works, it sees no cached tokens at all, and says 13.38. It is right where the cached ones stand beside the
# others, as Anthropic counts them. An agent sends its history again with each step, so nearly every step is such a one, and a budget that
# counts so ends at a seventh of its money.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error tokenlens@1.3.1 @pydantic/genai-prices@0.1.8 \
  ai@7.0.173 @ai-sdk/openai@4.0.118 ai-sdk-cost-calculator@7.1.14
cat >run.mjs <<'JS'
import { createOpenAI } from '@ai-sdk/openai'
import { calcPrice } from '@pydantic/genai-prices'
import { generateText } from 'ai'
import { calculateCost } from 'ai-sdk-cost-calculator'
import { getTokenCosts } from 'tokenlens'
import { serve, verdict } from './server.mjs'

const usage = {
  prompt_tokens: 103_000,
  completion_tokens: 500,
  total_tokens: 103_500,
  prompt_tokens_details: { cached_tokens: 100_000 },
}
const { url } = await serve(() => ({ text: 'Oslo.', usage }))
const model = createOpenAI({ apiKey: 'k', baseURL: url }).chat('gpt-5')
const { usage: ofAI } = await generateText({ model, prompt: 'Which city?' })
const ofAnthropic = { input_tokens: 3000, cache_read_input_tokens: 100_000, output_tokens: 500 }

const cents = (dollars) => Math.round(dollars * 10_000) / 100
const tokenlens = (usage) => cents(getTokenCosts({ modelId: 'openai:gpt-5', usage }).totalUSD)
const ofAI5 = { inputTokens: 103_000, outputTokens: 500, totalTokens: 103_500, cachedInputTokens: 100_000 }
const genai = calcPrice({ input_tokens: 103_000, cache_read_tokens: 100_000, output_tokens: 500 }, 'gpt-5')
verdict(
  {
    'genai-prices': cents(genai.total_price),
    'ai-sdk-cost-calculator': cents(calculateCost({ model: 'gpt-5', usage: ofAI }).totalCost),
    'tokenlens, usage of OpenAI': tokenlens(usage),
    'tokenlens, usage of ai 7': tokenlens(ofAI),
    'tokenlens, usage of ai 5': tokenlens(ofAI5),
    'tokenlens, usage of Anthropic': tokenlens(ofAnthropic),
  },
  {
    'genai-prices': 2.13,
    'ai-sdk-cost-calculator': 2.13,
    'tokenlens, usage of OpenAI': 14.68,
    'tokenlens, usage of ai 7': 13.38,
    'tokenlens, usage of ai 5': 14.68,
    'tokenlens, usage of Anthropic': 2.18,
  },
)
JS
node run.mjs
