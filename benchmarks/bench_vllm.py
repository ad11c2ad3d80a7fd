"""vLLM as a side of `bench.py`, in an environment of its own (requirements-vllm.txt): one rollout for every line of
standard input, with its prefix cache, in this process.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python bench_vllm.py MODEL_FOLDER SIZE DTYPE [--quick]
"""

import argparse

from bench_worker import serve
from vllm import LLM, SamplingParams, TokensPrompt
from workload import rollout_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("size")
    parser.add_argument("dtype")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rollout = rollout_of(options.size, options.quick)
    longest = rollout.prompt + rollout.turns * (rollout.response + rollout.state)
    llm = LLM(
        options.model, dtype=options.dtype, max_model_len=longest, enable_prefix_caching=True,
        max_num_seqs=rollout.groups * rollout.group_size, skip_tokenizer_init=True,
    )  # fmt: skip
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    sampling = SamplingParams(
        temperature=1.0, max_tokens=rollout.response, ignore_eos=True, logprobs=0, detokenize=False
    )

    def work() -> None:
        llm.reset_prefix_cache()
        episodes = rollout.prompts(vocabulary)
        for turn in range(rollout.turns):
            asked = [TokensPrompt(prompt_token_ids=ids) for ids in episodes]
            responses = llm.generate(asked, sampling, use_tqdm=False)
            for ids, response, state in zip(
                episodes, responses, rollout.states(vocabulary, turn), strict=True
            ):
                ids += list(response.outputs[0].token_ids) + state

    serve(work)


if __name__ == "__main__":
    main()
