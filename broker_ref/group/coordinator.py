from broker_ref.group.offsets import GroupOffsets


class GroupCoordinator(GroupOffsets):
    def __init__(self, *, config, metadata, replicas, schedule, wake):
        super().__init__(config=config, metadata=metadata, replicas=replicas)

    def became_leader(self, partition, now_ms):
        self._load(partition)

    def resigned(self, partition):
        pass

    def follow_metadata(self, now_ms):
        pass
