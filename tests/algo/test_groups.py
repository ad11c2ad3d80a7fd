import torch

from spa.algo.masked import group_stats


def test_by_hand():
    stats = group_stats(torch.tensor([1.0, 7.0, 3.0, 2.0, 3.0]), torch.tensor([9, 4, 9, 4, 30]))
    assert len(stats) == 3
    assert stats.index.tolist() == [1, 0, 1, 0, 2]
    assert stats.count.tolist() == [2, 2, 1]
    assert stats.mean.tolist() == [4.5, 2.0, 3.0]
    assert stats.max.tolist() == [7.0, 3.0, 3.0]
    torch.testing.assert_close(stats.std, torch.tensor([12.5, 2.0, 0.0]).double().sqrt())


def test_statistics_are_the_same_to_the_bit_for_every_order():
    generator = torch.Generator().manual_seed(0)
    scores, ids = torch.randn(90, generator=generator), torch.arange(3).repeat(30)
    stats = group_stats(scores, ids)
    for _ in range(20):
        order = torch.randperm(90, generator=generator)
        moved = group_stats(scores[order], ids[order])
        assert torch.equal(moved.mean, stats.mean)
        assert torch.equal(moved.std, stats.std)


def test_no_rows():
    assert len(group_stats(torch.zeros(0), torch.zeros(0, dtype=torch.int64))) == 0
