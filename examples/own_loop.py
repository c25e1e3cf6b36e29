"""Any method in a training loop of your own: python examples/own_loop.py 'grpo+clip_b(share=0.02)'"""

import sys

import torch

import entrobench

method = entrobench.Method(sys.argv[1] if len(sys.argv) > 1 else "grpo+clip_b(share=0.02)")
torch.manual_seed(0)
policy = torch.zeros(16, 16, requires_grad=True)  # logits of the next token, by the last one
optimizer = torch.optim.Adam([policy], lr=0.05)


def score(tokens):
    """Return log p and entropy of the sampled tokens, [B, T]."""
    logp = policy.log_softmax(-1)[tokens[:, :-1]]
    return logp.gather(-1, tokens[:, 1:, None])[..., 0], -(logp.exp() * logp).sum(-1)


for step in range(1, 31):
    tokens = torch.arange(8).repeat_interleave(8)[:, None]  # eight prompts of one token, eight responses to each
    for _ in range(6):
        tokens = torch.cat([tokens, policy.softmax(-1)[tokens[:, -1]].multinomial(1)], dim=1)
    rewards = (tokens.diff() > 0).sum(1) >= 4  # right: at least four of six tokens rise
    with torch.no_grad():
        logp, entropy = score(tokens)
    halves = torch.arange(64).chunk(2)  # two updates, each on four groups
    signal = method.signal(logp, rewards, tokens[:, 0], mask=torch.ones_like(logp), entropy=entropy, minibatches=halves)
    for rows in halves:
        logp, entropy = score(tokens[rows])
        optimizer.zero_grad()
        method.loss(signal, logp, rows, entropy=entropy).backward()
        optimizer.step()
    record = method.metrics(signal)
    method.observe(record)
    print(f"step {step}: reward {rewards.float().mean():.2f}, entropy {record['entropy/mean']:.2f}")
