import { overInput, overOutput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const dashscopeRange: Quirk = {
  id: 'dashscope-range',
  provider: 'Alibaba DashScope',
  claims: 'The range in which a length should be.',
  source: 'help.aliyun.com/zh/model-studio error codes',
  read: oneOf(
    says(
      /range of (?:max_tokens|max_completion_tokens|output length) should be \[ ?\d+, ?(\d+) ?\]/,
      (most) => overOutput(most),
    ),
    says(/range of (?:input|prompt|messages?) length should be \[ ?\d+, ?(\d+) ?\]/, (limit) =>
      overInput(limit, undefined),
    ),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message: '<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]',
          code: 'invalid_parameter_error',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 8192,
    },
    {
      status: 400,
      body: {
        error: { message: 'Range of input length should be [1, 129024]', code: 'invalid_parameter_error' },
      },
      means: 'shrink_context',
      limit: 129024,
    },
  ],
}
